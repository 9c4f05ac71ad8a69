"""Build results from a table of any program's runs: one row per run or per evaluation."""

import re
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dashboards.results import Results
from dashboards.sources.axis import at_budget, check_axis, with_axis
from dashboards.sources.conditions import equal
from dashboards.sources.costs import cost_columns, costs_of
from dashboards.sources.delimited import NOTES
from dashboards.sources.directions import DIRECTION, direction
from dashboards.sources.endings import check_endings, counter_of, ended_without_score
from dashboards.sources.names import RUN_NAMES, with_columns
from dashboards.sources.numerals import NO_SCORE, are_versions
from dashboards.sources.repeated_seeds import with_seeds_apart
from dashboards.sources.roles import check_explained, seed_column, with_step, without_summaries
from dashboards.sources.run_columns import RunColumns
from dashboards.sources.settings import FILES
from dashboards.sources.shapes import one_row_per_run, without_lists
from dashboards.sources.states import row_states, run_state, state_column
from dashboards.sources.tasks import over_tasks
from dashboards.sources.units import check_units
from dashboards.sources.unseeded_runs import LABELS, check_independence, with_labels
from dashboards.sources.unseeded_runs import NOTE as UNSEEDED
from dashboards.sources.wandb_tables import RUN_COLUMNS, is_run_table
from dashboards.statistics.budgets import Budget
from dashboards.trial import Curve, Objective, TrialRecord
from loptune.errors import ConfigError, listed, shortened
from loptune.parameter_names import short_names, shown
from loptune.terminal.table import counted
from loptune.yaml_document import nearest

# prefixes of the columns that contain settings
_SETTINGS = (
    "params.", "config.", "hparams.", "params_", *(f"{name.split('/')[-1]}:" for name in FILES)
)  # fmt: skip
_STATE = "state of a row"  # column with the state of each row's run
_MAX_NAMED = 8  # at most this many names in a message
_MAX_CHARS = 80  # length limit of a value in a message
_MAX_SPELLINGS = 4
_MAX_LISTED_CHARS = 600  # length limit of a list of configurations
_ROUNDING = 1e-3  # tolerance for scores rounded in the table
_TOO_LARGE = (1e100, np.finfo(float).max)  # finite, but too large to square


def read_runs(table: pd.DataFrame, columns: RunColumns, *, adaptive: bool = True) -> Results:
    """Return the results of a table; ``adaptive`` is described in `Results`.

    A trial has failed only if its rows mark it as failed. If a configuration has no row for a seed
    that others have, it has no trial on that seed.

    Raises:
        ConfigError: the table cannot give a verdict.
    """
    read = list(table.attrs.get(NOTES, ()))
    of_source = table.attrs.get(DIRECTION)
    table = table.reset_index(drop=True)  # concatenated tables may repeat index labels
    check_axis(columns)
    table, of_shape = one_row_per_run(table, columns)
    table = without_lists(table)
    _check_columns(table, columns)
    columns, notes = with_columns(columns, table)
    mode, of_direction = direction(columns.score, columns.mode, of_source)
    columns = replace(columns, mode=mode)
    notes += of_direction
    if not columns.seed:
        seed = seed_column(table, columns)
        if seed is not None:
            columns = replace(columns, seed=seed)
            notes.append(f"The seed is the column {seed}.")
    table, left_out = without_summaries(table, columns)
    notes += left_out
    to_be_independent = not columns.seed and columns.pairing == "auto"
    if not columns.seed:
        table, columns = with_labels(table, columns)
        notes.append(UNSEEDED)
    columns, of_step = with_step(columns, table)
    _check_roles(columns)
    notes = [*read, *of_shape, *notes, *of_step]
    runs = _typed(table, columns)
    state = state_column(runs, columns)
    runs[_STATE] = row_states(runs, columns)
    runs, left_out = _without_running(runs, columns, state)
    if state is not None:
        notes.append(f"How each run ended is read from the column {state}.")
    notes += left_out
    runs, repeated = with_seeds_apart(runs, columns)
    notes += repeated
    if columns.axis:
        runs, left_out = with_axis(runs, columns)
        notes += left_out
    points = list(dict.fromkeys(runs[columns.point].itertuples(index=False, name=None)))
    numbers = {point: str(number) for number, point in enumerate(points)}
    notes += _check_unlisted_settings(runs, columns, state)
    check_explained(runs, columns, _spoken(runs, columns, state))
    if to_be_independent:
        check_independence(runs, columns)
    notes += _spelled_alike(points)
    arm = _arm_names(points, columns)
    counter = counter_of(runs, columns)
    trials = _trials(runs, columns, numbers, arm, counter)
    arms, baseline = _baseline(numbers, arm, columns)
    _check_stopped(trials, baseline, state)
    by_task = _by_task(trials)
    budgets: dict[str, Budget | None] = {}
    for task, part in by_task.items():
        if columns.axis:
            by_task[task], budgets[task], of_budget = at_budget(part, columns)
            notes += [f"{task}: {note}" if task else note for note in of_budget]
        check_endings(by_task[task], columns, counter)
        check_units(by_task[task], columns)
    trials = _with_costs([trial for part in by_task.values() for trial in part], runs, columns)
    by_task = _by_task(trials)
    task_of: dict[Hashable, str] = {}
    if columns.task:
        compared_with = None if columns.against is not None else baseline
        trials, task_of, of_tasks = over_tasks(trials, columns, compared_with)
        notes += of_tasks
    _check_seeds(trials, columns)
    if columns.at_step is not None:
        longest = runs[columns.step].max() if columns.step in runs else columns.at_step
        notes.append(
            f"Runs are compared at step {columns.at_step:g}; the longest reached {longest:g}."
        )
    if columns.take == "best":
        notes.append(
            "The score is the best of each run's evaluations, which is biased: it favors noisy "
            "runs and runs with many evaluations."
        )
    window = 1
    if columns.step in runs and columns.take == "last" and not columns.axis:
        window = columns.evaluations
    kinds = {}
    for key, column in zip(columns.keys, columns.point, strict=True):
        kinds[key] = _kind(runs[column])
    results = Results(
        name="",
        objective=Objective(columns.metric, mode, window),
        trials=tuple(trials),
        searched=tuple(columns.keys),
        kinds=kinds,
        source=columns.source,
        adaptive=adaptive,
        baseline=baseline,
        arms=arms if columns.tuned else (),
        warnings=tuple(notes),
        task_of=task_of,
        budget=budgets[""] if columns.axis and not columns.task else None,
        at_equal_amounts=bool(columns.axis),
        place=columns.place if columns.place in runs else "",
    )
    if columns.task:
        parts = {}
        for task, part in by_task.items():
            if baseline in {trial.configuration for trial in part}:
                parts[task] = replace(
                    results, trials=tuple(part), task_of={}, warnings=(), budget=budgets.get(task)
                )
        results = replace(results, by_task=parts)
    if columns.problems is not None:
        return _with_problems(results, columns.problems)
    return results


def _trials(
    runs: pd.DataFrame,
    columns: RunColumns,
    numbers: Mapping[tuple[Any, ...], str],
    arm: Mapping[tuple[Any, ...], str],
    counter: str | None,
) -> list[TrialRecord]:
    """Return a trial for every configuration and seed that has rows."""
    evaluated: set[float] = set()
    if columns.step in runs:
        evaluated = set(runs.loc[runs[columns.score].notna(), columns.step])
    trials = []
    for key, rows in runs.groupby(columns.run, sort=False):
        values = key[: len(columns.point)]
        seed = key[-1]
        trial = TrialRecord(
            name=f"c{numbers[values]}-s{seed}",
            configuration=numbers[values],
            seed=str(seed),
            state="FAIL",
            parameters=dict(zip(columns.keys, values, strict=True)),
            rule=arm[values],
            arm=arm[values] if columns.tuned else "",
            task=" ".join(map(str, key[len(columns.point) : -1])),
        )
        if columns.trial in rows:
            trial = replace(trial, name=str(rows[columns.trial].iloc[0]))
        trial = _with_scores(trial, rows, columns, evaluated)
        if counter is not None and trial.state == "COMPLETE":
            trial = replace(trial, step=float(pd.to_numeric(rows[counter], errors="coerce").max()))
        trials.append(trial)
    trials.sort(key=lambda trial: (int(trial.configuration), len(trial.seed), trial.seed))
    return trials


def _with_costs(
    trials: Sequence[TrialRecord], runs: pd.DataFrame, columns: RunColumns
) -> list[TrialRecord]:
    """Return complete trials with their costs up to the point of comparison."""
    names = cost_columns(runs, columns)
    if not names:
        return list(trials)
    rows_of = {}
    for key, rows in runs.groupby(columns.run, sort=False):
        values = key[: len(columns.point)]
        task = " ".join(map(str, key[len(columns.point) : -1]))
        rows_of[values, task, str(key[-1])] = rows
    counted_in = []
    for trial in trials:
        if trial.state == "COMPLETE":
            rows = rows_of[tuple(trial.parameters.values()), trial.task, trial.seed]
            trial = replace(trial, costs=costs_of(rows, names, columns, trial.step))
        counted_in.append(trial)
    return counted_in


def _by_task(trials: Sequence[TrialRecord]) -> dict[str, list[TrialRecord]]:
    """Return task -> its trials."""
    by_task: dict[str, list[TrialRecord]] = {}
    for trial in trials:
        by_task.setdefault(trial.task, []).append(trial)
    return by_task


def _without_running(
    runs: pd.DataFrame, columns: RunColumns, state: str | None
) -> tuple[pd.DataFrame, list[str]]:
    """Drop runs that are still running, whose scores are not final; also return a note on them.

    Raises:
        ConfigError: every run is still running.
    """
    running = runs[_STATE] == "RUNNING"
    if not running.any():
        return runs, []
    if running.all():
        raise ConfigError(
            "no run has finished",
            f"column {state}",
            f"wait for them; if they crashed, add --failed {state}={runs[state].iloc[0]}",
            code="no-run-ended",
        )
    named = runs.loc[running, columns.run].drop_duplicates()
    return runs[~running], [
        f"Left out: {counted(len(named), 'run')} still running, according to the column "
        f"{state}. If they crashed, add --failed {state}={runs.loc[running, state].iloc[0]}."
    ]


def with_fresh(results: Results, table: pd.DataFrame, columns: RunColumns) -> Results:
    """Add a second table as results on fresh seeds.

    Raises:
        ConfigError: the second table repeats a seed or has other configurations.
    """
    chosen = read_runs(
        table, replace(columns, problems=None, source="second table"), adaptive=False
    )
    repeated = {trial.seed for trial in results.trials} & {trial.seed for trial in chosen.trials}
    if repeated and UNSEEDED not in chosen.warnings:
        named = ", ".join(sorted(repeated))
        raise ConfigError(
            f"seeds {named} are in both tables: they are not fresh",
            columns.seed,
            "use other seeds",
            code="seeds-not-fresh",
        )
    numbers = {tuple(trial.parameters.values()): trial.configuration for trial in results.trials}
    trials = []
    for trial in chosen.trials:
        number = numbers.get(tuple(trial.parameters.values()))
        if number is None:
            raise ConfigError(
                f"the second table has {_text(trial.parameters)}, which is missing from the "
                "first table",
                "second table",
                "add its runs from the selection to the first table",
                code="unknown-configuration",
            )
        trials.append(replace(trial, configuration=number))
    baseline = results.baseline
    if results.arms:
        settings: dict[str, set[str]] = {}
        for trial in trials:
            settings.setdefault(trial.arm, set()).add(trial.configuration)
        twice = [arm for arm, numbers_of_arm in settings.items() if len(numbers_of_arm) > 1]
        if twice or results.arms[0] not in settings:
            what = f"{twice[0]} has several settings" if twice else f"{results.arms[0]} is missing"
            raise ConfigError(
                f"{what} on fresh seeds",
                "second table",
                "run only the best setting of each",
                code="not-one-setting",
            )
        baseline = next(iter(settings[results.arms[0]]))
    fresh = replace(chosen, trials=tuple(trials), baseline=baseline, arms=())
    return replace(results, fresh=fresh)


def _check_columns(table: pd.DataFrame, columns: RunColumns) -> None:
    if not columns.by:
        raise ConfigError(
            "no column defines a configuration", "--by", "pass them with --by", code="no-by"
        )
    if table.empty:
        raise ConfigError(
            "the table has no rows",
            columns.source,
            "choose rows that exist with --where",
            code="no-rows",
        )


def _check_roles(columns: RunColumns) -> None:
    for column in columns.every:
        if columns.every.count(column) > 1:
            raise ConfigError(
                f"{column} is used in two options",
                "command line",
                "use each column in only one option",
                code="named-twice",
            )


def _typed(table: pd.DataFrame, columns: RunColumns) -> pd.DataFrame:
    """Convert columns that contain only numbers, and write seeds as strings."""
    runs = table.copy()
    for column in columns.point:
        setting = runs[column]
        runs[column] = _numbers(setting.astype(object).where(setting.notna(), "none"))
    runs[columns.seed] = _seed_texts(runs[columns.seed])
    runs[columns.score] = _scores(runs, columns)
    if columns.step in runs:
        scored = runs[columns.score].notna()
        if columns.step != columns.axis:
            runs[columns.step] = _integer_steps(runs[columns.step], scored)
    return runs


def _seed_texts(seeds: "pd.Series[Any]") -> list[str]:
    """Return seeds as strings: ``7`` for the number 7.0."""
    blank = int(seeds.isna().sum())
    if blank:
        raise ConfigError(
            f"{counted(blank, 'row')} without a seed",
            str(seeds.name),
            f"leave them out with --where '{seeds.name}!=none', or fill in their seeds",
            code="no-seed",
        )
    return [str(seed).strip().removesuffix(".0") for seed in seeds]


def _integer_steps(column: "pd.Series[Any]", scored: "pd.Series[bool]") -> "pd.Series[float]":
    """Return steps as numbers; the steps of rows with a score must be integers."""
    steps = pd.to_numeric(column, errors="coerce")
    if not (steps[scored] % 1 == 0).all():
        raise ConfigError(
            "a row with a score has a step that is not an integer",
            str(column.name),
            "choose the step column with --step",
            code="step-not-integer",
        )
    return steps


def _scores(runs: pd.DataFrame, columns: RunColumns) -> "pd.Series[float]":
    """Return the scores as numbers; strings that mean a failed run become NaN.

    Raises:
        ConfigError: a score is any other string or a number too large to square, or there are no
            scores.
    """
    raw = runs[columns.score]
    scores = pd.to_numeric(raw, errors="coerce")
    failed = raw.astype(str).str.strip().str.lower().isin(NO_SCORE)
    wrong = raw[(scores.isna() & raw.notna() & ~failed) | scores.abs().between(*_TOO_LARGE)]
    if len(wrong):
        value = shortened(str(wrong.iloc[0]), _MAX_CHARS)
        hint = "write a number, or leave it blank for a failed run"
        if "," in value:
            hint = "write a decimal point, and no thousands separators"
        raise ConfigError(f"'{value}' is not a valid score", columns.score, hint, code="no-number")
    if scores.isna().all():
        raise ConfigError(
            "no row has a score",
            columns.score,
            "choose another column with --score",
            code="no-score",
        )
    return scores.astype(float)


def _numbers(values: "pd.Series[Any]") -> "pd.Series[Any]":
    numbers = pd.to_numeric(values, errors="coerce")
    texts = values.astype(str).str.strip()
    return numbers if numbers.notna().all() and not are_versions(texts.unique()) else texts


def _kind(values: "pd.Series[Any]") -> str:
    if not pd.api.types.is_numeric_dtype(values) or values.dtype == bool:
        return "choice"
    if values.min() > 0 and values.max() >= 30 * values.min():
        return "loguniform"
    return "uniform"


def _check_unlisted_settings(
    runs: pd.DataFrame, columns: RunColumns, state: str | None
) -> list[str]:
    """Reject runs that differ in a setting outside --by and --tuned.

    If --by is a run-name column,
    such as W&B's ``Name``, a configuration stands for all of its settings; the result is then a
    note on the settings that differ between configurations.
    """
    spoken = _spoken(runs, columns, state)
    others = [str(column) for column in runs if column not in spoken]
    trials = runs.groupby(columns.run, sort=False)[others].nunique(dropna=False)
    settings = [column for column in others if (trials[column] == 1).all()]
    runs = runs[[*columns.run, *settings]].drop_duplicates()
    values = runs.groupby(columns.point, sort=False)[settings].nunique(dropna=False)
    by_seed = runs.groupby(columns.seed)[settings].nunique(dropna=False)
    several = runs.groupby(columns.point).size().gt(1).any()
    named_by = any(column in RUN_NAMES for column in columns.by)
    apart = []
    of_names = []
    for column in settings:
        different = runs[column].nunique(dropna=False)
        if different == 1 or not several or _repeats_point(runs, column, columns):
            continue
        fixed = (values[column] == 1).all()
        mixed = (
            column.startswith(_SETTINGS)
            and different < len(runs)
            and not (by_seed[column] == 1).all()
        )
        if fixed and named_by:
            of_names.append(column)
        elif fixed or mixed:
            apart.append(column)
    apart.sort(key=lambda column: runs[column].nunique(dropna=False))  # ids and paths last
    of_names.sort(key=lambda column: runs[column].nunique(dropna=False))
    if apart:
        raise ConfigError(
            f"runs differ in {listed(apart, _MAX_NAMED)}, which --by does not include",
            "--by",
            "add the settings that define a configuration to --by or --tuned, and ignore the "
            f"others: --ignore {_quoted_list(apart)}",
            code="runs-differ",
        )
    if not of_names:
        return []
    return [f"Configurations differ in {listed(of_names, _MAX_NAMED)}."]


def _spoken(runs: pd.DataFrame, columns: RunColumns, state: str | None) -> set[str | None]:
    """Return the columns that have a role, or that describe a run of W&B."""
    spoken: set[str | None] = {*columns.every, columns.trial, _STATE, state}
    return spoken | set(RUN_COLUMNS) if is_run_table(runs) else spoken


def _repeats_point(runs: pd.DataFrame, column: str, columns: RunColumns) -> bool:
    """Return whether a column only repeats the configuration, such as ``out/dapo`` for ``dapo``:
    its values are equal once the name of the configuration is removed.
    """
    rest = set()
    for values in runs[[column, *columns.point]].drop_duplicates().itertuples(index=False):
        text = str(values[0])
        for value in values[1:]:
            text = text.replace(str(value).strip(), "{}")
        rest.add(text)
    return len(rest) == 1


def _quoted_list(names: Sequence[str]) -> str:
    """Quote names as one command-line argument."""
    written = []
    for name in names:
        written.append(f'"{name}"' if "," in name else name)
    text = ",".join(written)
    if any(mark in text for mark in ' "()[]&;|<>*?$'):
        return f"'{text}'"
    return text


def _with_scores(
    trial: TrialRecord, rows: pd.DataFrame, columns: RunColumns, evaluated: set[float]
) -> TrialRecord:
    """Return a trial with the evaluations in its rows.

    It has failed if its rows mark it as failed, if it has no score, or if its last evaluations have
    none. ``evaluated`` are the steps at which any run has a score.
    """
    state = run_state(rows[_STATE])
    if state == "FAIL":
        return replace(trial, reason="marked as failed in the table")
    stepwise = columns.step in rows
    if stepwise and columns.at_step is not None:
        rows = rows[rows[columns.step] <= columns.at_step]
        evaluated = {step for step in evaluated if step <= columns.at_step}
    scored = rows[rows[columns.score].notna()]
    if stepwise:  # logs saved with each checkpoint repeat earlier rows
        scored = scored.drop_duplicates([columns.step, columns.score])
    steps = scored[columns.step] if stepwise else scored[columns.score] * 0
    if steps.duplicated().any():
        raise _same_twice(scored, columns, trial)
    if scored.empty and columns.at_step is not None:
        raise ConfigError(
            f"{trial.rule} seed {trial.seed} has no evaluation up to step {columns.at_step}",
            "--at-step",
            "choose a later step",
            code="no-evaluation",
        )
    values = scored[columns.score].set_axis(steps).sort_index()
    if values.empty or not np.isfinite(values.iloc[-columns.evaluations :]).all():
        return replace(trial, reason="no score")
    if stepwise and ended_without_score(rows, columns, evaluated):
        return replace(trial, reason="no score in its last evaluations")
    last_step = float(values.index[-1])
    if columns.axis:  # average evaluations at the same value of a coarse axis
        values = scored.groupby(columns.axis)[columns.score].mean()
    curve = Curve(tuple(map(float, values.index)), tuple(map(float, values)))
    score = curve.score(columns.evaluations)
    if columns.take == "best":
        score = columns.best([value for value in curve.values if np.isfinite(value)])
    trial = replace(trial, state=state, score=score)
    if stepwise:
        trial = replace(trial, step=last_step)
    if len(curve.steps) > 1 or columns.axis:
        trial = replace(trial, curves={columns.metric: curve})
    return trial


def _same_twice(rows: pd.DataFrame, columns: RunColumns, trial: TrialRecord) -> ConfigError:
    setting = shortened(_text(trial.parameters), _MAX_CHARS)
    if trial.task:
        setting += f" on {shortened(trial.task, _MAX_CHARS)}"
    if columns.step in rows and rows[columns.step].nunique() > 1:
        repeated = rows[columns.step][rows[columns.step].duplicated()].iloc[0]
        rows = rows[rows[columns.step] == repeated]
        setting += f" at {columns.step} {repeated:.0f}"
    what = f"{setting} has seed {trial.seed} several times"
    separate = (
        "" if columns.pairing == "unpaired" else "; if these are separate runs, add --unpaired"
    )
    others = [column for column in rows if column not in (columns.score, columns.step)]
    differ = [str(column) for column in others if rows[column].nunique() > 1]
    if differ:
        what += f"; its rows differ in {', '.join(differ[:_MAX_NAMED])}"
    return ConfigError(
        what,
        columns.source,
        "drop the repeated run, or pass the column that distinguishes the rows with --by, "
        "--step or --task, or select rows with --where" + separate,
        code="repeated-run",
    )


def _check_stopped(trials: Sequence[TrialRecord], baseline: str | None, state: str | None) -> None:
    """Reject the runs if a pruner stopped some runs of the baseline or of every other
    configuration: the remaining scores are a selection.
    """
    stopped = {trial.configuration for trial in trials if trial.state == "PRUNED"}
    left = {trial.configuration for trial in trials} - stopped
    if not stopped or (len(left) > 1 and baseline not in stopped):
        return
    pruned = "the baseline" if baseline in stopped else "every other configuration"
    raise ConfigError(
        f"runs of {pruned} were pruned",
        f"column {state}",
        "run them without a pruner, because the scores of unpruned runs are biased upward; to "
        f"judge only these, add --where {state}=COMPLETE",
        code="runs-pruned",
    )


def _check_seeds(trials: Sequence[TrialRecord], columns: RunColumns) -> None:
    """Reject a single seed, and seeds without effect."""
    scores: dict[str, list[float]] = defaultdict(list)
    for trial in trials:
        if trial.state == "COMPLETE":
            scores[trial.configuration].append(trial.score)
    repeated = [row for row in scores.values() if len(row) > 1]
    if not repeated:
        raise ConfigError(
            "every configuration has one run, so noise cannot be estimated",
            columns.source if columns.seed == LABELS else columns.seed,
            "run each configuration on at least 3 seeds",
            code="one-seed",
        )
    if all(len(set(row)) == 1 for row in repeated):
        raise ConfigError(
            "all seeds of a configuration have exactly the same score: the runs are identical",
            columns.seed,
            "check that the seed affects data order and sampling, then run again",
            code="identical-runs",
        )


def _arm_names(
    points: Sequence[tuple[Any, ...]], columns: RunColumns
) -> dict[tuple[Any, ...], str]:
    keys = [columns.names[column] for column in columns.by]
    names = short_names(keys)
    texts = {}
    for point in points:
        values = zip(keys, point[: len(keys)], strict=True)
        texts[point] = " ".join(f"{names[column]}={shown(value)}" for column, value in values)
    return texts


def _spelled_alike(points: Sequence[tuple[Any, ...]]) -> list[str]:
    """Return a note on configurations that may be one: their names differ only in case, blanks,
    hyphens and underscores.
    """
    spellings: dict[tuple[Any, ...], list[str]] = {}
    for point in points:
        letters = []
        for value in point:
            text = isinstance(value, str)
            letters.append(re.sub(r"[\s_-]", "", value).casefold() if text else value)
        spellings.setdefault(tuple(letters), []).append(" ".join(map(shown, point)))
    notes = []
    for names in spellings.values():
        if len(names) > 1:
            notes.append(
                f"Compared as different configurations: {listed(names, _MAX_SPELLINGS)}. If they "
                "are one, write its name in one way."
            )
    return notes


def _baseline(
    numbers: Mapping[tuple[Any, ...], str], arm: Mapping[tuple[Any, ...], str], columns: RunColumns
) -> tuple[tuple[str, ...], str | None]:
    """Return the arms, baseline first, and the baseline's configuration number if nothing is
    tuned.
    """
    if columns.against is not None:  # the baseline is a number, so no configuration is the baseline
        names = list(dict.fromkeys(arm.values()))
        return tuple(names), next(iter(numbers.values()))
    for column in columns.baseline:
        if column not in columns.by:
            raise ConfigError(
                f"the baseline uses {column}, which is not in --by",
                "--baseline",
                nearest(column, columns.by),
                code="baseline-not-in-by",
            )
    matching = []
    for point in numbers:
        settings = dict(zip(columns.by, point, strict=False))
        if all(equal(settings[column], value) for column, value in columns.baseline.items()):
            matching.append(point)
    # 1.1 and 1.10 both exist, and only one was typed
    if len({arm[point] for point in matching}) > 1:
        wanted = [str(value) for value in columns.baseline.values()]
        places = [list(columns.by).index(column) for column in columns.baseline]
        typed = [p for p in matching if [str(p[place]) for place in places] == wanted]
        matching = typed or matching
    arms = list(dict.fromkeys(arm[point] for point in matching))
    if len(arms) != 1:
        count = f"matches {len(arms)} configurations" if arms else "matches no configuration"
        named = "; ".join(shortened(name, _MAX_CHARS) for name in dict.fromkeys(arm.values()))
        named_baseline = f"the baseline {_text(columns.baseline)} {count}"
        if not columns.baseline:
            named_baseline = f"choose the baseline among {len(arms)} configurations"
        raise ConfigError(
            named_baseline,
            "--baseline",
            f"choose among: {shortened(named, _MAX_LISTED_CHARS)}",
            code="no-baseline",
        )
    baseline_first = dict.fromkeys([*arms, *arm.values()])
    number = None if columns.tuned else numbers[matching[0]]
    return tuple(baseline_first), number


def _text(parameters: Mapping[str, Any]) -> str:
    names = short_names(list(parameters))
    texts = []
    for name, value in parameters.items():
        texts.append(f"{names[name]}={shortened(shown(value), _MAX_CHARS)}")
    return " ".join(texts)


def _with_problems(results: Results, problems: pd.DataFrame) -> Results:
    """Return the results with the problems that each run solved.

    Raises:
        ConfigError: the problems do not reproduce the scores.
    """
    for column in ("trial", "problem", "correct"):
        if column not in problems:
            raise ConfigError(
                f"no column {column}",
                "--problems",
                nearest(column, map(str, problems.columns)),
                code="unknown-column",
            )
    rated = problems.assign(
        correct=pd.to_numeric(problems.correct, errors="coerce"), trial=problems.trial.astype(str)
    )
    if rated.correct.isna().any():
        raise ConfigError(
            "a value in the column correct is missing or not a number",
            "--problems",
            "write 1 or 0 in the column correct",
            code="no-number",
        )
    table = rated.pivot_table(index="trial", columns="problem", values="correct", aggfunc="mean")
    table = table.reindex([trial.name for trial in results.trials])
    trials = []
    for trial in results.trials:
        if trial.state == "COMPLETE":
            accuracy = table.loc[trial.name].to_numpy()
            if not abs(accuracy.mean() - trial.score) < _ROUNDING:
                raise ConfigError(
                    f"run {trial.name} has score {shown(trial.score)}, but its problems "
                    f"average {shown(float(accuracy.mean()))}",
                    "--problems",
                    "list all problems of every run, and pass the run column with --trial",
                    code="problems-differ",
                )
            trial = replace(trial, solved=tuple(map(float, accuracy)))
        trials.append(trial)
    return replace(results, trials=tuple(trials))
