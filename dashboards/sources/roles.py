"""Infer the roles of columns that are not specified: the seed, the step, a task.

Rows are treated as runs only if every column has an explanation: the score, a setting, the seed,
the step, the run name, or another measurement. A column that divides the runs of a configuration
into recurring kinds is none of these: its values are tasks, metrics or splits.
"""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace

import pandas as pd

from dashboards.sources.column_words import COUNTERS, DURATIONS, MEMORY, UNITS_OF_TIME, words_of
from dashboards.sources.run_columns import RunColumns
from dashboards.sources.wandb_tables import is_run_table
from loptune.errors import ConfigError, listed, shortened
from loptune.parameter_names import shown
from loptune.terminal.table import counted

# names of columns that may be the step, most informative first
STEPS = (
    "_step", "global_step", "Step", "steps", "training_iteration", "time/total_timesteps",
    "timesteps_total", "num_env_steps_sampled_lifetime", "total_timesteps", "env_step", "env_steps",
    "frame", "frames", "TotalEnvInteracts", "iteration", "iter", "round", "episode", "Episode",
    "Epoch", "epoch",
)  # fmt: skip
_STEP_WORDS = (
    *COUNTERS, *UNITS_OF_TIME, "checkpoint", "ckpt", "checkpoints", "batch", "batches", "round",
    "rounds", "generation", "gen", "t", "progress",
)  # fmt: skip
# columns with run names, most informative first
NAMES = ("ID", "run_id", "id", "trial_id", "Name", "name", "run_name", "run", "Run", "trial")
_RUNS = (
    "rep", "reps", "repeat", "repeats", "repetition", "repetitions", "replicate", "replicates",
    "replica", "trial", "trials", "run", "runs", "attempt", "try", "tries", "execution",
)  # fmt: skip
_REPEATS = (*_RUNS, "idx", "index", "id", "number")
# words for the items of one evaluation, such as problems: all runs have the same item ids
_OF_PROBLEMS = (
    "prompt", "problem", "question", "query", "item", "example", "instance", "case", "puzzle",
    "doc", "document", "sentence", "image", "dialog", "conversation", "sample",
)  # fmt: skip
# names of columns that describe where and when a run was made
_OF_PLACE = (
    "host", "hostname", "node", "gpu", "device", "machine", "date", "time", "timestamp",
    "created", "started", "finished", "updated", "commit", "git", "sha", "user", "path", "dir",
    "directory", "file", "folder", "url", "link", "note", "notes", "comment", "comments",
    "tag", "tags", "command", "pid", "job", "log", "output",
)  # fmt: skip
_COSTS = (*DURATIONS, "s", "h", *MEMORY, "tokens", "flops")
_SUMMARIES = (
    "avg", "average", "mean", "std", "sd", "stdev", "stddev", "sem", "stderr", "median", "min",
    "max", "sum", "total", "overall", "var", "variance", "count", "ci", "iqm", "iqr",
    "mean±std",
)  # fmt: skip
_FEWEST_GRID = 8  # minimum number of values of an unknown column that looks like steps
_MOST_REPEATED = 0.5  # maximum fraction of rows that repeat a step of their run after a restart
_MOST_NUMBERS = 12  # maximum number of values of a numeric column that divides runs into kinds
_FEWEST_REPEATED = 4  # number of consecutive rows that cannot be equal by chance
_MAX_CHARS = 40  # length limit of a value in a message
_MAX_VALUES = 4


def _is_seed(name: str) -> bool:
    words = words_of(name)
    together = "".join(words)
    return (
        any(word in ("seed", "seeds", "rng") for word in words)
        or together.endswith("seed")
        or together.startswith(("randomstate", "seed"))
    )


def is_of_run(name: str) -> bool:
    """Return whether all words of a column name identify, number or describe a run, or name a cost:
    ``run``, ``date``, ``memory_gb``, but not ``run A``, which may be a configuration.
    """
    return name in NAMES or set(words_of(name)).issubset((*_OF_PLACE, *_REPEATS, *_COSTS))


def is_summary(text: str) -> bool:
    """Return whether a cell is the name of a summary, such as ``avg`` or ``std``."""
    return bool(set(words_of(text)).intersection(_SUMMARIES))


def seed_column(table: pd.DataFrame, columns: RunColumns) -> str | None:
    """Return the seed column if none is specified, or None if the table has none.

    A column that is blank in every row, such as RLlib's ``"seed": null``, is not a seed column.

    Raises:
        ConfigError: several columns could be the seed.
    """
    taken = {*columns.point, columns.score, *columns.ignore, *columns.task}
    found = []
    for column in map(str, table):
        if column not in taken and _is_seed(column) and table[column].notna().any():
            found.append(column)
    exact = [column for column in found if words_of(column) == ["seed"]]
    varying = [column for column in found if table[column].nunique() > 1]
    candidates = [column for column in varying if column in exact] or varying or exact
    if not candidates:
        return None
    codes = [table[column].astype(str).factorize()[0].tolist() for column in candidates]
    if any(other != codes[0] for other in codes[1:]):
        raise ConfigError(
            f"several columns could be the seed: {listed(candidates, _MAX_VALUES)}",
            "--seed",
            f"choose the one that distinguishes runs, such as --seed {candidates[0]}",
            code="ambiguous-seed",
        )
    return min(candidates, key=lambda column: (column != "seed", len(column)))


def step_columns(table: pd.DataFrame, columns: RunColumns) -> list[str]:
    """Return the columns that may be the step according to their names, most informative first."""
    taken = {*columns.point, columns.score, columns.seed, *columns.ignore, *columns.task}
    named = [column for column in (columns.axis, columns.step, *STEPS) if column in table]
    for column in map(str, table):
        if set(words_of(column)).intersection(_STEP_WORDS) and pd.api.types.is_numeric_dtype(
            table[column]
        ):
            named.append(column)
    return [column for column in dict.fromkeys(named) if column not in taken]


def with_step(columns: RunColumns, table: pd.DataFrame) -> tuple[RunColumns, list[str]]:
    """Return ``columns`` with the step column filled in, and a note if it was detected rather than
    given. If there is an axis and no other step column, the axis is used as the step.

    Raises:
        ConfigError: a run repeats steps, as after a restart, and no column names the runs.
    """
    if columns.step in table:
        return columns, []
    of_run = columns.run
    scored = table[table[columns.score].notna()]
    along_axis = replace(columns, step=columns.axis) if columns.axis else columns
    if columns.axis in STEPS or not scored.duplicated(of_run).any():
        return along_axis, []
    named = step_columns(table, columns)
    restarted: list[str] = []
    for column in [*named, *_grids(scored, of_run, columns)]:
        if column == columns.axis:
            continue
        if restarted and column not in named:
            break
        steps = pd.to_numeric(scored[column], errors="coerce")
        values_of_run = scored.groupby(of_run)[column].nunique()
        # the first test also rejects blanks
        if not (steps % 1 == 0).all() or values_of_run.max() == 1:
            continue
        # A step never repeats in a run, except with an equal score: logs that were saved with each
        # checkpoint repeat earlier rows.
        rows = scored.drop_duplicates([*of_run, column, columns.score])
        repeated = rows.duplicated([*of_run, column])
        if not repeated.any():
            return replace(columns, step=column), [f"step is the column {column}."]
        if column in STEPS and repeated.mean() < _MOST_REPEATED:
            restarted.append(column)
    if restarted and not set(NAMES).intersection(table) and columns.pairing != "unpaired":
        raise _restarted(scored, restarted[0], columns)
    return along_axis, []


def _restarted(scored: pd.DataFrame, step: str, columns: RunColumns) -> ConfigError:
    repeated = scored[scored.duplicated([*columns.run, step])].iloc[0]
    run = " ".join(f"{name}={shown(repeated[name])}" for name in columns.run)
    return ConfigError(
        f"{run} has several scores at {step} {shown(repeated[step])}",
        step,
        "if the run was restarted, drop the rows that it repeated; if these are separate runs, add "
        "a column with their names",
        code="repeated-run",
    )


def _grids(scored: pd.DataFrame, of_run: list[str], columns: RunColumns) -> list[str]:
    """Return numeric columns that look like steps: they grow from row to row within every run, and
    runs share most of the values.
    """
    taken = {*columns.every, *of_run}
    grids = []
    for column in map(str, scored):
        values = scored[column]
        if column in taken or not pd.api.types.is_numeric_dtype(values) or values.isna().any():
            continue
        if values.nunique() < _FEWEST_GRID or {"fold", "split", *_REPEATS} & set(words_of(column)):
            continue
        growing = values.groupby([scored[name] for name in of_run]).diff().dropna() > 0
        shared = values.duplicated(keep=False).mean()
        if growing.all() and shared > 0.5:
            grids.append(column)
    return grids


def without_summaries(table: pd.DataFrame, columns: RunColumns) -> tuple[pd.DataFrame, list[str]]:
    """Drop rows that summarize other rows, such as ``avg`` and ``std`` in the seed column; also
    return a note on them.
    """
    names = {columns.seed, columns.step, *NAMES}
    notes = []
    for column in map(str, table):
        if column in (*columns.point, columns.score, *columns.task):
            continue
        texts = table[column].astype(str).str.strip().str.lower()
        summaries = texts.isin(_SUMMARIES)
        if not summaries.any() or summaries.all():
            continue
        rest = pd.to_numeric(texts[~summaries & table[column].notna()], errors="coerce")
        if column in names or rest.notna().all():
            words = listed(sorted(set(texts[summaries])), _MAX_VALUES)
            notes.append(
                f"Left out: {counted(int(summaries.sum()), 'row')} with {words} in the column "
                f"{column}, which summarize other rows."
            )
            table = table[~summaries]
    return table.reset_index(drop=True), notes


def check_repeats(table: pd.DataFrame, columns: RunColumns) -> None:
    """Reject a table without seeds that contains the same rows several times.

    Raises:
        ConfigError: rows are repeated; the error names them.
    """
    rows = ["\x1f".join(map(str, row)) for row in table.itertuples(index=False)]
    where = _repeated_block(rows)
    counts = pd.Series(rows).value_counts()
    twice = (counts > 1).all() and len(counts) >= _FEWEST_REPEATED
    measured = []  # measured columns other than the score
    for column in map(str, table.select_dtypes("float")):
        if column not in (*columns.point, columns.score):
            measured.append(table[column].nunique() > len(counts) / 2)
    telling = any(measured) and (counts - 1).sum() > 1
    if where is None and not twice and not telling:
        return
    named = f"{int((counts - 1).sum())} of {len(rows)} rows equal others in every column"
    if where is not None:
        first, again, length = where
        named = f"rows {again + 1} to {again + length} equal rows {first + 1} to {first + length}"
    raise ConfigError(
        f"{named}: the same runs were saved several times, or no column distinguishes them",
        columns.source,
        "remove the repeated rows; if they are separate runs, add a column with run names",
        code="repeated-rows",
    )


def _repeated_block(rows: Sequence[str]) -> tuple[int, int, int] | None:
    """Return the positions of two equal blocks of consecutive rows and their length, or None."""
    first_place: dict[tuple[str, ...], int] = {}
    for place in range(len(rows) - _FEWEST_REPEATED + 1):
        block = tuple(rows[place : place + _FEWEST_REPEATED])
        if len(set(block)) < _FEWEST_REPEATED:
            continue  # rows that are equal within a block are often a coincidence
        first = first_place.setdefault(block, place)
        if place >= first + _FEWEST_REPEATED:  # the blocks do not overlap
            return first, place, _length_of_repeat(rows, first, place)
    return None


def _length_of_repeat(rows: Sequence[str], first: int, second: int) -> int:
    """Return how many rows starting at ``first`` are repeated starting at ``second``, without
    overlap.
    """
    length = 0
    for row, repeated in zip(rows[first:second], rows[second:], strict=False):
        if row != repeated:
            break
        length += 1
    return length


def check_explained(
    runs: pd.DataFrame, columns: RunColumns, spoken: Collection[str | None]
) -> None:
    """Reject rows as runs if a column divides them into recurring kinds: tasks, metrics or splits.

    Args:
        runs: the rows, with labels for runs without seeds.
        columns: roles of the table's columns.
        spoken: explained columns, which have a role or describe a run.

    Raises:
        ConfigError: there is such a column; the error names it and its possible roles.
    """
    of_run = columns.run
    scored = runs[runs[columns.score].notna()]
    at_once = scored
    if columns.step in runs:
        at_once = scored.drop_duplicates([*of_run, columns.step, columns.score])
        of_run_at_once = [*of_run, columns.step]
    else:
        of_run_at_once = of_run
    others = [str(column) for column in runs if column not in spoken and column not in of_run]
    repeated = at_once[at_once.duplicated(of_run_at_once, keep=False)]
    if not repeated.empty:  # several rows of one seed, at one step
        for column in others:
            if _may_be_task(column) and not repeated.duplicated([*of_run_at_once, column]).any():
                differing = repeated.groupby(of_run_at_once)[column].nunique(dropna=False)
                if (differing > 1).any() and _recurs(repeated, column, columns):
                    raise _not_repeats(runs, column, columns)
        return
    single = runs.groupby(of_run, sort=False)[others].nunique(dropna=False)
    constant = [column for column in others if (single[column] <= 1).all()]
    one_each = runs.drop_duplicates(of_run)
    for column in constant:
        if _may_be_task(column) and _divides(one_each, column, columns):
            raise _not_repeats(runs, column, columns)


def _may_be_task(column: str) -> bool:
    words = set(words_of(column))
    if words.intersection(_OF_PROBLEMS):
        return True
    return not (words.intersection((*_OF_PLACE, *_REPEATS)) or column in NAMES)


def _recurs(rows: pd.DataFrame, column: str, columns: RunColumns) -> bool:
    """Return whether the values of a column recur over configurations or seeds, so that it is
    neither a run name nor a measurement.
    """
    values = rows[column].dropna()
    if not pd.api.types.is_numeric_dtype(values) or values.dtype == bool:
        return values.nunique() <= len(values) / 2
    sets = {frozenset(cells) for _, cells in rows.groupby(columns.point)[column]}
    return len(sets) == 1 and values.nunique() <= max(_MOST_NUMBERS, len(values) / 4)


def _divides(runs: pd.DataFrame, column: str, columns: RunColumns) -> bool:
    """Return whether a column divides the runs of a configuration into recurring kinds."""
    present = runs[runs[column].notna()]
    values = present[column]
    by_arm = present.groupby(columns.point, sort=False)[column]
    if values.nunique() < 2 or not (by_arm.nunique() > 1).any():
        return False
    if _same_for_all(present, column, columns):
        return False
    numbers = pd.to_numeric(values, errors="coerce")
    if numbers.isna().any() or values.dtype == bool:
        return bool(values.nunique() <= len(values) / 2)
    counts = [cells.value_counts() for _, cells in by_arm]
    sets = {frozenset(each.index) for each in counts}
    if len(counts) < 2 or len(sets) > 1:
        return False
    balanced = all(each.to_dict() == counts[0].to_dict() for each in counts)
    repeated = min(int(each.min()) for each in counts) > 1
    return balanced or (repeated and values.nunique() <= _MOST_NUMBERS / 2)


def _same_for_all(runs: pd.DataFrame, column: str, columns: RunColumns) -> bool:
    """Return whether every seed has the same value in all configurations, and every configuration
    has every seed: the column is then part of the seed.
    """
    by_seed = runs.groupby(columns.seed)
    arms = len(runs.drop_duplicates(columns.point))
    return bool((by_seed[column].nunique() == 1).all() and (by_seed.size() == arms).all())


def _not_repeats(runs: pd.DataFrame, column: str, columns: RunColumns) -> ConfigError:
    values = runs[column].dropna()
    named = [shortened(shown(value), _MAX_CHARS) for value in values.drop_duplicates()]
    name = f'"{column}"' if "," in column else column
    condition = quoted(f"{name}={named[0]}")
    growing = ""
    if _is_growing(runs, column, columns):
        growing = f"if it grows during a run, compare along it with --axis {quoted(name)}; "
    return ConfigError(
        f"rows of one configuration differ in {column} ({listed(named, _MAX_VALUES)}): they are "
        "not repeats of one run",
        column,
        f"{growing}if they are tasks, judge a single one with --where {condition}, or all "
        f"together with --task {quoted(name)}; if it is a setting, add it to --by; if it numbers "
        f"the repeats, add --seed {quoted(name)}; if it makes no difference, add --ignore "
        f"{quoted(name)}",
        code="not-repeats",
    )


def _is_growing(runs: pd.DataFrame, column: str, columns: RunColumns) -> bool:
    """Return whether the numbers of a column grow from row to row within every run."""
    values = pd.to_numeric(runs[column], errors="coerce")
    steps = values.groupby([runs[name] for name in columns.run]).diff().dropna()
    return bool(len(steps) and (steps > 0).all())


def quoted(text: str) -> str:
    """Quote a string as one command-line argument."""
    return shlex.quote(text)


def is_named(table: pd.DataFrame) -> bool:
    """Return whether the rows are runs: every row has a different run name, or the table is W&B's
    export of a project's runs.
    """
    return is_run_table(table) or any(table[name].is_unique for name in _name_columns(table))


def is_numbered(table: pd.DataFrame, columns: RunColumns) -> bool:
    """Return whether a column such as ``repeat`` numbers the runs of every configuration."""
    point = [*columns.point, *columns.task]
    for column in map(str, table):
        named = set(words_of(column)).intersection(_RUNS) and column not in (*point, columns.score)
        if named and not table.duplicated([*point, column]).any():
            return True
    return False


def _name_columns(table: pd.DataFrame) -> list[str]:
    return [name for name in NAMES if name in table and table[name].notna().all()]


def named_runs(table: pd.DataFrame, columns: RunColumns) -> "pd.Series[int]":
    """Return the run number of each row in a table without seeds.

    A run is a single row, or all rows with the same name and different steps. Without names, the
    rows of a configuration form one run if their steps differ.

    Raises:
        ConfigError: rows are evaluations, but cannot be assigned to runs.
    """
    rows = pd.Series(range(1, len(table) + 1), index=table.index)
    if is_named(table):
        return rows
    names = _name_columns(table)
    point = [*columns.point, *columns.task]
    if any(not table.duplicated([*point, name]).any() for name in names):
        return rows
    several = [step for step in step_columns(table, columns) if table[step].nunique() > 1]
    for of_run in [*([*point, name] for name in names), point]:
        several += _grids(table, of_run, columns)
    for step in several:
        for name in names:
            if not table.duplicated([*point, name, step]).any():
                return table.groupby([*point, name], sort=False, dropna=False).ngroup() + 1
        if not table.duplicated([*point, step]).any():
            return table.groupby(point, dropna=False).ngroup() + 1
    if several:
        raise ConfigError(
            f"rows with several values of {several[0]} cannot be assigned to runs",
            columns.source,
            "pass the column that identifies runs with --seed; if each row is a run, add "
            f"--ignore {several[0]}",
            code="runs-not-told-apart",
        )
    for name in names:
        if (table.groupby(point, dropna=False)[name].nunique() > 1).any():
            example = table[name][table.duplicated([*point, name])].iloc[0]
            raise ConfigError(
                f"the run {shortened(shown(example), _MAX_CHARS)} has several rows",
                f"column {name}",
                "pass the step column with --step, or the task column with --task; if each "
                f"row is a run, add --ignore {name}",
                code="runs-not-told-apart",
            )
    return rows
