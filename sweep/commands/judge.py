"""``sweep judge``: the verdict on runs of any program."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.config.tracking import TrackingConfig
from trainer.config.yaml_document import nearest
from trainer.errors import ConfigError
from trainer.shell.arguments import Commands, add_json, add_runs_dir, count
from trainer.shell.table import print_json, print_table
from trainer.tracking.mlflow_store import connect, tracking_uri

if TYPE_CHECKING:
    import pandas as pd

    from dashboards.judging import Judgement

_MLFLOW = "mlflow:"


def add_commands(commands: Commands) -> None:
    """Add ``sweep judge``."""
    judge = commands.add_parser("judge", help="give the verdict on runs of any program")
    judge.set_defaults(command=_judge)
    judge.add_argument(
        "table", help="CSV, JSONL or Parquet file, a file pattern, or mlflow:EXPERIMENT"
    )
    for option, text in {
        "--by": "comma-separated columns that define a configuration",
        "--score": "column of the score",
        "--seed": "column of the seed",
    }.items():
        judge.add_argument(option, required=True, help=text)
    for option, text in {
        "--baseline": "COLUMN=VALUE,... of the configuration to beat",
        "--tuned": "comma-separated columns that were tuned for each value of --by",
        "--ignore": "columns that may differ between configurations",
        "--where": "COLUMN=VALUE,... that rows must have",
        "--problems": "table of per-problem results with the columns trial, problem, correct",
    }.items():
        judge.add_argument(option, default="", help=text)
    judge.add_argument(
        "--mode",
        choices=["max", "min"],
        default="max",
        help="whether larger or smaller scores are better (default: max)",
    )
    judge.add_argument(
        "--window",
        type=count,
        default=3,
        help="number of last evaluations averaged into the score (default: 3)",
    )
    judge.add_argument("--step", default="step", help="column of the training step (default: step)")
    fresh = judge.add_mutually_exclusive_group()
    fresh.add_argument(
        "--fresh", action="store_true", help="nothing was chosen by looking at these seeds"
    )
    fresh.add_argument(
        "--fresh-table", help="second table: runs of the chosen configurations on fresh seeds"
    )
    judge.add_argument(
        "--trial", default="trial", help="column of the run's name, for --problems (default: trial)"
    )
    judge.add_argument("--store", help="URI of the MLflow store (default: the runs folder's)")
    judge.add_argument(
        "--output", type=Path, default=Path("judged"), help="folder of the report (default: judged)"
    )
    add_runs_dir(judge)
    add_json(judge)


def _judge(arguments: argparse.Namespace) -> int:
    from dashboards.judging import judge  # pandas and SciPy take a second to import
    from dashboards.sources.files import read_files

    second = _table(arguments.fresh_table, arguments) if arguments.fresh_table else arguments.fresh
    judgement = judge(
        _table(arguments.table, arguments),
        by=_names(arguments.by),
        baseline=_pairs(arguments.baseline),
        score=arguments.score,
        seed=arguments.seed,
        fresh=second,
        tuned=_names(arguments.tuned),
        ignore=_names(arguments.ignore),
        source=arguments.table,
        problems=read_files(arguments.problems) if arguments.problems else None,
        **{name: getattr(arguments, name) for name in ("mode", "window", "step", "trial")},
    )
    page = judgement.write_report(arguments.output)
    if arguments.json:
        print_json(_as_json(judgement, page))
        return 0
    print(judgement)
    if judgement.results.arms:
        from dashboards.pictures.tournament import rule_table
        from trainer.shell.table import number

        headings, table = rule_table(judgement.results)
        print_table(headings, [[number(value) for value in row] for row in table])
    print(f"report: {page}")
    return 0


def _as_json(judgement: "Judgement", page: Path) -> dict[str, object]:
    verdict = judgement.verdict
    return {
        "sentences": judgement.sentences,
        "verdict": None
        if verdict is None
        else {"kind": type(verdict).__name__.lower(), **asdict(verdict)},
        "tuned": [asdict(standing) for standing in judgement.results.arm_standings]
        if judgement.results.arms
        else [],
        "report": str(page),
    }


def _table(place: str, arguments: argparse.Namespace) -> "pd.DataFrame":
    """Return the rows of files or of an experiment that match --where."""
    if place.startswith(_MLFLOW):
        from dashboards.sources.mlflow import read_experiment

        uri = tracking_uri(TrackingConfig(uri=arguments.store), arguments.runs_dir)
        connect(uri)  # reading would create a missing store
        table = read_experiment(uri, place.removeprefix(_MLFLOW), arguments.score, arguments.seed)
    else:
        from dashboards.sources.files import read_files

        table = read_files(place)
    for column, value in _pairs(arguments.where).items():
        if column not in table:
            raise ConfigError(
                f"no column {column}", "--where", nearest(column, map(str, table.columns))
            )
        table = table[table[column].astype(str).str.strip() == value]
    return table


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _pairs(text: str) -> dict[str, str]:
    pairs = {}
    for name in _names(text):
        column, equals, value = name.partition("=")
        if not equals or column in pairs:
            fault = "is a second value of its column" if equals else "is not COLUMN=VALUE"
            raise ConfigError(
                f"{name} {fault}", "command line", "write COLUMN=VALUE, such as loss=grpo"
            )
        pairs[column] = value
    return pairs
