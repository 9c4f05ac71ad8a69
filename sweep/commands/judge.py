"""``sweep judge``: the verdict on runs of any program."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from loptune.errors import StorageError
from loptune.terminal.arguments import Commands, add_json, add_runs_dir, count
from loptune.terminal.table import print_json, print_table
from trainer.config.tracking import TrackingConfig
from trainer.tracking.mlflow_store import connect, tracking_uri

if TYPE_CHECKING:
    import pandas as pd

_MLFLOW = "mlflow:"
_WANDB = "wandb:"
_TABLE_WIDTH = 240  # outside of a terminal, so that no cell is wrapped


def add_commands(commands: Commands) -> None:
    """Add ``sweep judge``."""
    judge = commands.add_parser(
        "judge",
        help="give the verdict on runs of any program",
        description="Give the verdict on runs of any program, from the files it wrote: CSV, JSON, "
        "Parquet, TensorBoard's event files, mlruns folders, W&B's exports and folders, Optuna's "
        "studies. Or from an experiment of MLflow, or a project of W&B.",
    )
    judge.set_defaults(command=_judge)
    judge.add_argument(
        "table",
        help="file, folder, or pattern such as 'runs/{algo}-s{seed}/metrics.csv'; "
        "or mlflow:EXPERIMENT, or wandb:ENTITY/PROJECT",
    )
    _add_roles(judge)
    _add_rows(judge)
    _add_score(judge)
    _add_comparison(judge)
    fresh = judge.add_mutually_exclusive_group()
    fresh.add_argument(
        "--fresh", action="store_true", help="nothing was chosen by looking at these seeds"
    )
    fresh.add_argument(
        "--fresh-table", help="second table: runs of the chosen configurations on fresh seeds"
    )
    judge.add_argument("--store", help="URI of the MLflow store (default: the runs folder's)")
    judge.add_argument(
        "--output", type=Path, default=Path("judged"), help="folder of the report (default: judged)"
    )
    add_runs_dir(judge)
    add_json(judge)


def _add_roles(judge: argparse.ArgumentParser) -> None:
    """Add the options that give columns their roles."""
    for option, text in {
        "--by": "comma-separated columns that define a configuration",
        "--score": "column of the score",
    }.items():
        judge.add_argument(option, required=True, help=text)
    judge.add_argument(
        "--seed",
        default="",
        help="column of the seed (default: seed, if there is one; else every run counts by itself)",
    )
    for option, text in {
        "--baseline": "COLUMN=VALUE,... of the configuration to beat",
        "--tuned": "comma-separated columns that were tuned for each value of --by",
        "--ignore": "columns that may differ between configurations",
        "--problems": "table of per-problem results with the columns trial, problem, correct",
    }.items():
        judge.add_argument(option, default="", help=text)
    judge.add_argument("--step", default="step", help="column of the training step (default: step)")
    judge.add_argument(
        "--trial", default="trial", help="column of the run's name, for --problems (default: trial)"
    )


def _add_rows(judge: argparse.ArgumentParser) -> None:
    """Add the options that select rows and say how runs ended."""
    for option, text in {
        "--where": "COLUMN=VALUE,... that rows must have; !=, <, <=, > and >= work too",
        "--names": "pattern of runs' names such as {algo}-s{seed}; its parts become columns",
        "--failed": "COLUMN=VALUE,... of failed runs, in addition to those of a state column",
    }.items():
        judge.add_argument(option, default="", help=text)
    judge.add_argument(
        "--at-step",
        type=count,
        metavar="STEP",
        help="compare runs at this training step: later evaluations do not count",
    )
    judge.add_argument(
        "--allow-unequal",
        action="store_true",
        help="compare runs that end at different training steps, each at its own end",
    )
    judge.add_argument(
        "--same-unit",
        action="store_true",
        help="compare scores of which some look like fractions and others like percentages",
    )


def _add_score(judge: argparse.ArgumentParser) -> None:
    """Add the options that make one score of a run's evaluations."""
    judge.add_argument(
        "--mode",
        choices=["max", "min"],
        default="max",
        help="whether larger or smaller scores are better (default: max)",
    )
    judge.add_argument(
        "--take",
        choices=["last", "best"],
        default="last",
        help="a run's score: its last evaluations, or its best, which is biased (default: last)",
    )
    judge.add_argument(
        "--window",
        type=count,
        default=3,
        help="number of last evaluations averaged into the score (default: 3)",
    )


def _add_comparison(judge: argparse.ArgumentParser) -> None:
    """Add the options that say how arms are compared."""
    paired = judge.add_mutually_exclusive_group()
    paired.add_argument(
        "--paired",
        dest="pairing",
        action="store_const",
        const="paired",
        default="auto",
        help="compare seed by seed, on shared seeds only (default: decided by the seeds)",
    )
    paired.add_argument(
        "--unpaired",
        dest="pairing",
        action="store_const",
        const="unpaired",
        help="compare all runs without pairing by seed (Welch's test)",
    )
    judge.add_argument(
        "--worthwhile",
        type=float,
        default=0.0,
        help="smallest improvement that matters, in units of the score (default: 0)",
    )
    judge.add_argument(
        "--not-worse-by",
        type=float,
        metavar="MARGIN",
        help="also test which configurations are not worse than the baseline by this margin",
    )
    judge.add_argument(
        "--against",
        type=float,
        metavar="NUMBER",
        help="compare each configuration with this number instead of a baseline",
    )


def _judge(arguments: argparse.Namespace) -> int:
    from dashboards.judging import judge  # pandas and SciPy take a second to import
    from dashboards.sources.conditions import conditions, equalities, split_list
    from dashboards.sources.run_tables import read_files

    fresh = arguments.fresh
    if arguments.fresh_table:
        fresh = _table(arguments.fresh_table, arguments)
    problems = read_files(arguments.problems) if arguments.problems else None
    judgement = judge(
        _table(arguments.table, arguments),
        by=split_list(arguments.by),
        baseline=equalities(arguments.baseline),
        score=arguments.score,
        seed=arguments.seed,
        fresh=fresh,
        tuned=split_list(arguments.tuned),
        ignore=split_list(arguments.ignore),
        failed=conditions(arguments.failed),
        source=arguments.table,
        problems=problems,
        mode=arguments.mode,
        take=arguments.take,
        window=arguments.window,
        at_step=arguments.at_step,
        allow_unequal=arguments.allow_unequal,
        same_unit=arguments.same_unit,
        pairing=arguments.pairing,
        worthwhile=arguments.worthwhile,
        not_worse_by=arguments.not_worse_by,
        against=arguments.against,
        step=arguments.step,
        trial=arguments.trial,
    )
    page = judgement.write_report(arguments.output)
    if arguments.json:
        print_json({**judgement.fields(), "report": str(page)})
        return 0
    print(judgement)
    for note in judgement.results.warnings:
        print(note)
    if judgement.results.arms:
        from dashboards.pictures.tournament import rule_table
        from loptune.terminal.table import number

        headings, table = rule_table(judgement.results)
        rows = [list(map(number, row)) for row in table]
        print_table(headings, rows)
    if judgement.arms:
        from dashboards.pictures.differences import arm_cells

        print_table(*arm_cells(judgement.results), width=_TABLE_WIDTH)
    print(f"report: {page}")
    return 0


def _table(source: str, arguments: argparse.Namespace) -> "pd.DataFrame":
    """Return the rows of files, an experiment or a project that match --where."""
    from dashboards.sources.places import read_experiment, read_place, select

    if source.startswith(_MLFLOW):
        uri = _store(arguments)
        name = source.removeprefix(_MLFLOW)
        table = read_experiment(uri, name, arguments.score, arguments.seed)
    elif source.startswith(_WANDB):
        from dashboards.sources.wandb_project import read_project

        table = read_project(source.removeprefix(_WANDB), arguments.score)
    else:
        table = read_place(source, arguments.score, arguments.seed)
    return select(table, arguments.where, arguments.names)


def _store(arguments: argparse.Namespace) -> str:
    """Return the URI of the MLflow store, which exists; --store may also be a path.

    Raises:
        StorageError: there is no store, or it does not answer.
    """
    from dashboards.sources.mlflow_folders import folder_of

    store = arguments.store
    if store is not None and Path(store).is_dir():
        store = Path(store).resolve().as_uri()
    elif store is not None and Path(store).is_file():
        store = f"sqlite:///{store}"
    uri = tracking_uri(TrackingConfig(uri=store), arguments.runs_dir)
    folder = folder_of(uri)
    if folder is not None:
        return uri  # it is checked when it is opened: MLflow would create a missing one
    try:
        connect(uri)  # reading would create a missing store
    except StorageError as error:
        raise StorageError(
            error.what,
            error.where,
            "name the store with --store: sqlite:///FILE, http://HOST:PORT or an mlruns folder",
            code="unreadable-store",
        ) from None
    return uri
