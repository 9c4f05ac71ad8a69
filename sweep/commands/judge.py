"""``sweep judge``: the verdict on runs of any program."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from loptune.credentials import check_address
from loptune.errors import StorageError
from loptune.section import NonNegative, Positive
from loptune.sqlite_url import sqlite_url
from loptune.terminal.arguments import Commands
from loptune.terminal.commands import Command, Option, RunsDir, add_command
from loptune.terminal.table import print_table
from trainer.config.tracking import TrackingConfig
from trainer.tracking.mlflow_store import connect, tracking_uri

if TYPE_CHECKING:
    import pandas as pd

    from dashboards.judging import Judgement
    from dashboards.sources.conditions import Condition

Columns = str | Sequence[str]  # a string is split at commas
Values = (
    str | Sequence[str] | Mapping[str, Any]
)  # "COLUMN=VALUE,...", a list of such items, or a mapping

_MLFLOW = "mlflow:"
_WANDB = "wandb:"
_TABLE_WIDTH = 240  # table width outside of a terminal, so that no cell is wrapped
_COLUMNS = "columns"  # groups of the help screen
_ROWS = "rows"
_SCORE = "score"
_COMPARISON = "comparison"


def add_commands(commands: Commands) -> None:
    """Add ``sweep judge``."""
    add_command(commands, JUDGE)


def judge(
    table: Annotated[
        "str | pd.DataFrame",
        Option(
            "file, folder, or pattern such as 'runs/{algo}-s{seed}/metrics.csv'; a sweep's folder "
            "runs/NAME; or mlflow:EXPERIMENT, or wandb:ENTITY/PROJECT",
            is_path=True,
        ),
    ],
    *,
    by: Annotated[
        Columns,
        Option(
            "comma-separated columns that define a configuration", group=_COLUMNS, separated=True
        ),
    ],
    score: Annotated[
        Columns,
        Option(
            "score column; several, separated by commas, are combined by --composite",
            group=_COLUMNS,
            separated=True,
        ),
    ],
    seed: Annotated[
        str,
        Option(
            "seed column (default: the column with the name of a seed, such as `seed` or "
            "`random_state`; without one, runs are independent)",
            group=_COLUMNS,
        ),
    ] = "",
    baseline: Annotated[
        Values,
        Option("COLUMN=VALUE,... of the configuration to beat", group=_COLUMNS, separated=True),
    ] = "",
    tuned: Annotated[
        Columns,
        Option(
            "comma-separated columns that were tuned for each value of --by",
            group=_COLUMNS,
            separated=True,
        ),
    ] = "",
    ignore: Annotated[
        Columns,
        Option(
            "columns whose differences between runs are ignored", group=_COLUMNS, separated=True
        ),
    ] = "",
    task: Annotated[
        Columns,
        Option(
            "task or dataset columns: differences are averaged over tasks",
            group=_COLUMNS,
            separated=True,
        ),
    ] = "",
    problems: Annotated[
        "str | pd.DataFrame",
        Option(
            "table of per-problem results with the columns trial, problem, correct",
            group=_COLUMNS,
            is_path=True,
        ),
    ] = "",
    step: Annotated[str, Option("training-step column", group=_COLUMNS)] = "step",
    trial: Annotated[str, Option("run-name column, for --problems", group=_COLUMNS)] = "trial",
    where: Annotated[
        str,
        Option(
            "COLUMN=VALUE,... that rows must have; !=, <, <=, > and >= work too",
            group=_ROWS,
            separated=True,
        ),
    ] = "",
    names: Annotated[
        str,
        Option(
            "pattern of run names such as {algo}-s{seed}; its parts become columns", group=_ROWS
        ),
    ] = "",
    failed: Annotated[
        "str | Sequence[Condition]",
        Option(
            "COLUMN=VALUE,... of failed runs, in addition to the failures in a state column",
            group=_ROWS,
            separated=True,
        ),
    ] = "",
    at_step: Annotated[
        Positive | None,
        Option(
            "compare runs at this training step: later evaluations are ignored",
            group=_ROWS,
            metavar="STEP",
        ),
    ] = None,
    axis: Annotated[
        str,
        Option(
            "column that grows, such as tokens: compare runs at the same amount, "
            "interpolated between evaluations",
            group=_ROWS,
            metavar="COLUMN",
        ),
    ] = "",
    at: Annotated[
        Positive | None,
        Option(
            "amount of --axis (default: the largest one that all runs reach)",
            group=_ROWS,
            metavar="AMOUNT",
        ),
    ] = None,
    allow_unequal: Annotated[
        bool,
        Option(
            "compare runs that end at different training steps, each at its own end", group=_ROWS
        ),
    ] = False,
    same_unit: Annotated[
        bool, Option("skip the check that rejects mixes of fractions and percentages", group=_ROWS)
    ] = False,
    mode: Annotated[
        Literal["max", "min"] | None,
        Option(
            "whether larger or smaller scores are better (default: as declared by the sweep or "
            "study, else max)",
            group=_SCORE,
        ),
    ] = None,
    take: Annotated[
        Literal["last", "best"],
        Option(
            "score of a run: mean of its last evaluations, or its best evaluation (biased)",
            group=_SCORE,
        ),
    ] = "last",
    window: Annotated[
        NonNegative | None,
        Option(
            "number of last evaluations averaged into the score (default: 3); with --axis a length "
            "on the axis (default: a tenth of the amount)",
            group=_SCORE,
        ),
    ] = None,
    pairing: Annotated[
        Literal["auto", "paired", "unpaired"],
        Option(
            "whether equal seeds are compared with each other (default: decided by the seeds)",
            group=_COMPARISON,
            flags={
                "paired": "compare seed by seed, on shared seeds only "
                "(default: decided by the seeds)",
                "unpaired": "compare all runs without pairing by seed (Welch's test)",
            },
        ),
    ] = "auto",
    composite: Annotated[
        str,
        Option(
            "how several scores become one: mean, iqm (interquartile mean), or NAME=WEIGHT,...",
            group=_SCORE,
        ),
    ] = "mean",
    guard: Annotated[
        Columns,
        Option(
            "METRIC:MARGIN,... on which a better configuration must not be worse by more than the "
            "margin (default margin: 0); METRIC:MARGIN:min if smaller values are better",
            group=_COMPARISON,
            separated=True,
        ),
    ] = "",
    second: Annotated[
        str,
        Option(
            "METRIC of a second objective, which is plotted against the score but does not affect "
            "the verdict; METRIC:min or METRIC:max sets the direction (default: by its name)",
            group=_SCORE,
            metavar="METRIC",
        ),
    ] = "",
    worthwhile: Annotated[
        float, Option("smallest improvement that matters, in units of the score", group=_COMPARISON)
    ] = 0.0,
    not_worse_by: Annotated[
        float | None,
        Option(
            "also test which configurations are not worse than the baseline by more than MARGIN",
            group=_COMPARISON,
            metavar="MARGIN",
        ),
    ] = None,
    against: Annotated[
        float | None,
        Option(
            "compare each configuration with this number instead of a baseline",
            group=_COMPARISON,
            metavar="NUMBER",
        ),
    ] = None,
    fresh: Annotated[
        "bool | pd.DataFrame",
        Option(
            "the seeds of the table were not used to select anything, so their scores are evidence",
            group=_COMPARISON,
            excludes="fresh",
        ),
    ] = False,
    fresh_table: Annotated[
        str | None,
        Option(
            "second table: runs of the chosen configurations on fresh seeds",
            group=_COMPARISON,
            excludes="fresh",
            is_path=True,
        ),
    ] = None,
    store: Annotated[
        str | None,
        Option("URI of the MLflow store (default: the store in the runs folder)", is_path=True),
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    output: Annotated[Path | None, Option("folder of the report", is_path=True)] = None,
) -> "Judgement":
    """Compute the verdict on runs of any program. Reads CSV, JSON and Parquet files, TensorBoard
    event files, mlruns folders, W&B exports and folders, Optuna studies, MLflow experiments, and
    W&B projects.

    From Python, tables may also be DataFrames: one row per run, or one row per evaluation if there
    is a step column. A report is only written if ``output`` is a folder.

    Example:
        >>> import loptune as lt, pandas as pd
        >>> runs = pd.DataFrame(
        ...     {"lr": [0.1] * 3 + [0.2] * 3, "seed": [0, 1, 2] * 2,
        ...      "acc": [0.50, 0.52, 0.51, 0.60, 0.62, 0.63]}
        ... )
        >>> judgement = lt.judge(runs, by=["lr"], baseline={"lr": 0.1}, score="acc", fresh=True)
        >>> round(judgement.verdict.difference, 4)
        0.1067

    Raises:
        UserError: the runs cannot be read, or cannot give a verdict.
    """
    from dashboards.judging import judge  # pandas and SciPy take a second to import
    from dashboards.sources.conditions import conditions
    from dashboards.sources.run_tables import read_files
    from dashboards.sources.scores import guards_of, parse_second

    others = [each.metric for each in guards_of(guard)]
    plotted = parse_second(second)
    if plotted is not None:
        others.append(plotted.metric)
    metrics = list(dict.fromkeys([*_columns(score), *others, *_columns(axis)]))

    def read(place: "str | pd.DataFrame") -> "pd.DataFrame":
        from dashboards.sources.places import select

        if isinstance(place, str):
            place = _read(place, metrics=metrics, seed=seed, store=store, runs_dir=runs_dir)
        return select(place, where, names)

    if fresh_table:
        fresh = read(fresh_table)
    elif not isinstance(fresh, bool):
        fresh = read(fresh)
    solved = None
    if not isinstance(problems, str):
        solved = problems
    elif problems:
        solved = read_files(problems)
    judgement = judge(
        read(table),
        by=_columns(by),
        baseline=_values(baseline),
        score=score,
        seed=seed,
        fresh=fresh,
        tuned=_columns(tuned),
        task=_columns(task),
        ignore=_columns(ignore),
        failed=conditions(failed) if isinstance(failed, str) else failed,
        source=table if isinstance(table, str) else "a table",
        problems=solved,
        mode=mode,
        take=take,
        window=window,
        at_step=at_step,
        axis=axis,
        at=at,
        composite=composite,
        guard=guard,
        second=second,
        allow_unequal=allow_unequal,
        same_unit=same_unit,
        pairing=pairing,
        worthwhile=worthwhile,
        not_worse_by=not_worse_by,
        against=against,
        step=step,
        trial=trial,
    )
    if output is None:
        return judgement
    return replace(judgement, page=judgement.write_report(output))


def _columns(columns: Columns) -> list[str]:
    """Return column names; a string is split at commas."""
    from dashboards.sources.conditions import split_list

    return split_list(columns) if isinstance(columns, str) else list(columns)


def _values(values: Values) -> dict[str, Any]:
    """Return column -> value."""
    from dashboards.sources.conditions import equalities

    if isinstance(values, Mapping):
        return dict(values)
    found: dict[str, Any] = {}
    for text in [values] if isinstance(values, str) else values:
        found |= equalities(text)
    return found


def show(judgement: "Judgement") -> None:
    """Print a verdict with its notes and tables."""
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
    if judgement.results.by_score or judgement.results.guards:
        from dashboards.pictures.differences import score_cells

        print_table(*score_cells(judgement.results), width=_TABLE_WIDTH)
    if judgement.results.by_task:
        from dashboards.pictures.differences import task_cells

        print_table(*task_cells(judgement.results), width=_TABLE_WIDTH)
    print(f"report: {judgement.page}")


def fields(judgement: "Judgement") -> dict[str, Any]:
    """Return a verdict with the keys of ``--json``."""
    page = judgement.page
    return {**judgement.fields(), "report": None if page is None else str(page)}


def _read(
    source: str, *, metrics: Sequence[str], seed: str, store: str | None, runs_dir: Path
) -> "pd.DataFrame":
    """Return the rows of a sweep, of files, of an experiment or of a project. The first of
    ``metrics`` is the score.
    """
    score, *others = metrics
    if source.startswith(_MLFLOW):
        from dashboards.sources.places import read_experiment

        name = source.removeprefix(_MLFLOW)
        return read_experiment(_store_uri(store, runs_dir), name, score, seed, others)
    if source.startswith(_WANDB):
        from dashboards.sources.wandb_project import read_project

        return read_project(source.removeprefix(_WANDB), score, others=others)
    from dashboards.sources.places import read_place
    from sweep.record.run_table import sweep_at, table_of_sweep

    sweep = sweep_at(Path(source))
    if sweep is not None:
        return table_of_sweep(sweep, score)
    return read_place(source, score, seed, others)


def _store_uri(store: str | None, runs_dir: Path) -> str:
    """Return the URI of an MLflow store; --store may also be a path.

    Raises:
        ConfigError: the URI has credentials.
        StorageError: there is no such store, or its database cannot be read.
    """
    if store is not None and Path(store).is_file():
        uri = sqlite_url(Path(store).resolve())
    else:
        given = None if store is None else _as_uri(store)
        check_address(given, "--store")
        uri = tracking_uri(TrackingConfig(uri=given), runs_dir)
    _check_store(uri)
    return uri


def _as_uri(store: str) -> str:
    """Return the URI of a store that may be the path of a folder."""
    path = Path(store)
    return path.resolve().as_uri() if path.is_dir() else store


def _check_store(uri: str) -> None:
    """Check a database, because reading would create a missing one. Folders and servers are checked
    when they are read.

    Raises:
        StorageError: there is no such store, or its database cannot be read.
    """
    from dashboards.sources.mlflow_folders import PASS_THE_STORE, folder_of

    if folder_of(uri) is not None:
        return
    try:
        connect(uri, records=False)
    except StorageError as error:
        if error.code == "no-mlflow-store":
            raise error.with_hint(PASS_THE_STORE) from None
        raise


JUDGE = Command(
    function=judge,
    show=show,
    fields=fields,
    example="sweep judge runs.csv --by loss --baseline loss=grpo --score accuracy",
    defaults={"output": Path("judged")},
)
