"""Build results from a table of any program's runs: one row per run or per evaluation."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from dashboards.results import FIELDS, Curve, Objective, Results, Trial
from dashboards.statistics.verdict import Mode
from trainer.config.variants import short_names, shown
from trainer.config.yaml_document import nearest
from trainer.errors import ConfigError

_SETTINGS = ("params.", "config.yaml:")  # prefixes of columns that hold settings
_MAX_NAMED = 8  # at most this many names in a message
_ROUNDING = 1e-3  # tolerance for scores rounded in the table
_TOO_LARGE = (1e100, np.finfo(float).max)  # finite, but too large to square


@dataclass(frozen=True)
class Question:
    """The roles of a table's columns."""

    by: Sequence[str]  # columns that define what is compared
    score: str
    seed: str
    baseline: Mapping[str, Any]  # column of ``by`` -> value
    tuned: Sequence[str] = ()  # tuned within each of ``by``
    step: str = "step"  # if present, there is one row per evaluation
    trial: str = "trial"  # name of a run, for `problems`
    window: int = 3  # the score is the mean of this many last evaluations
    mode: Mode = "max"
    ignore: Sequence[str] = ()  # columns that may differ between configurations
    problems: pd.DataFrame | None = None  # trial, problem, correct
    source: str = "a table"

    @property
    def point(self) -> list[str]:
        """The columns that make up a configuration."""
        return [*self.by, *self.tuned]

    @property
    def columns(self) -> list[str]:
        """Every column with a role; ``step`` is optional."""
        return [*self.point, self.score, self.seed, *self.ignore, self.step]

    @property
    def keys(self) -> list[str]:
        """Names of these columns as trial parameters."""
        return [f"by.{column}" if column in FIELDS else column for column in self.point]


def read_runs(table: pd.DataFrame, question: Question, *, adaptive: bool = True) -> Results:
    """Return the results of a table; ``adaptive`` is described in `Results`.

    A trial has failed only if its rows say so. A configuration without a row for a seed that others
    have simply has no trial on it.

    Raises:
        ConfigError: the table cannot give a verdict.
    """
    runs = _typed(table, question)
    points = list(dict.fromkeys(runs[question.point].itertuples(index=False, name=None)))
    numbers = {point: str(number) for number, point in enumerate(points)}
    _check_apart(runs, question)
    groups = dict(list(runs.groupby([*question.point, question.seed], sort=False)))
    arm = _arm_names(points, question)
    trials = []
    for (*point, seed), rows in groups.items():
        values = tuple(point)
        trial = Trial(
            name=f"c{numbers[values]}-s{seed}",
            configuration=numbers[values],
            seed=str(seed),
            state="FAIL",
            parameters=dict(zip(question.keys, values, strict=True)),
            rule=arm[values],
            arm=arm[values] if question.tuned else "",
        )
        if question.trial in rows:
            trial = replace(trial, name=str(rows[question.trial].iloc[0]))
        trials.append(_with_scores(trial, rows, question))
    trials.sort(key=lambda trial: (int(trial.configuration), len(trial.seed), trial.seed))
    arms, baseline = _baseline(numbers, arm, question)
    _check_seeds(trials, arms[0], question)
    results = Results(
        name="",
        objective=Objective(
            question.score, question.mode, question.window if question.step in runs else 1
        ),
        trials=tuple(trials),
        searched=tuple(question.keys),
        kinds={
            key: _kind(runs[column])
            for key, column in zip(question.keys, question.point, strict=True)
        },
        source=question.source,
        adaptive=adaptive,
        baseline=baseline,
        arms=arms if question.tuned else (),
    )
    return results if question.problems is None else _with_problems(results, question.problems)


def with_fresh(results: Results, table: pd.DataFrame, question: Question) -> Results:
    """Add a second table as results on fresh seeds.

    Raises:
        ConfigError: the second table repeats a seed or has other configurations.
    """
    chosen = read_runs(
        table, replace(question, problems=None, source="second table"), adaptive=False
    )
    repeated = {trial.seed for trial in results.trials} & {trial.seed for trial in chosen.trials}
    if repeated:
        named = ", ".join(sorted(repeated))
        raise ConfigError(
            f"seeds {named} are in both tables: they are not fresh",
            question.seed,
            "use other seeds",
        )
    numbers = {tuple(trial.parameters.values()): trial.configuration for trial in results.trials}
    trials = []
    for trial in chosen.trials:
        number = numbers.get(tuple(trial.parameters.values()))
        if number is None:
            raise ConfigError(
                f"the second table has {_text(trial.parameters)}, which the first one lacks",
                "second table",
                "add its runs on the seeds that selected it",
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
                f"{what} on fresh seeds", "second table", "run only the best setting of each"
            )
        baseline = next(iter(settings[results.arms[0]]))
    fresh = replace(chosen, trials=tuple(trials), baseline=baseline, arms=())
    return replace(results, fresh=fresh)


def _typed(table: pd.DataFrame, question: Question) -> pd.DataFrame:
    """Convert columns that hold only numbers, and write seeds as strings."""
    if not question.by or table.empty:
        what = "the table has no rows" if question.by else "no column defines a configuration"
        raise ConfigError(
            what, "--by, --where", "name columns with --by, and rows that exist with --where"
        )
    for column in [*question.columns, question.trial]:
        if column not in table and column not in ("step", "trial"):
            raise ConfigError(
                f"no column {column}", question.source, nearest(column, map(str, table.columns))
            )
        if question.columns.count(column) > 1:
            raise ConfigError(f"{column} is named twice", "command line", "give it one meaning")
    runs = table.copy()
    for column in question.point:
        runs[column] = _numbers(runs[column].astype(object).where(runs[column].notna(), "none"))
    blank = runs[question.seed].isna().sum()
    if blank:
        raise ConfigError(
            f"{blank} rows have no seed", question.seed, "leave them out, or give each its seed"
        )
    runs[question.seed] = [str(seed).removesuffix(".0") for seed in runs[question.seed]]
    scores = pd.to_numeric(runs[question.score], errors="coerce")
    wrong = runs[question.score][
        (scores.isna() & runs[question.score].notna()) | scores.abs().between(*_TOO_LARGE)
    ]
    if len(wrong):
        raise ConfigError(
            f"'{wrong.iloc[0]}' is not a valid score",
            question.score,
            "write a number, or leave it blank for a failed run",
        )
    if scores.isna().all():
        raise ConfigError("no row has a score", question.score, "name another column with --score")
    runs[question.score] = scores
    if question.step in runs:
        steps = pd.to_numeric(runs[question.step], errors="coerce")
        if not (steps[scores.notna()] % 1 == 0).all():
            raise ConfigError(
                "a row with a score has a step that is not a whole number",
                question.step,
                "name the column with --step",
            )
        runs[question.step] = steps
    for lists in runs.select_dtypes("object"):  # lists cannot be compared
        runs[lists] = runs[lists].astype(str)
    return runs


def _numbers(values: "pd.Series[Any]") -> "pd.Series[Any]":
    numbers = pd.to_numeric(values, errors="coerce")
    return numbers if numbers.notna().all() else values.astype(str).str.strip()


def _kind(values: "pd.Series[Any]") -> str:
    if not pd.api.types.is_numeric_dtype(values) or values.dtype == bool:
        return "choice"
    return "loguniform" if values.min() > 0 and values.max() >= 30 * values.min() else "uniform"


def _check_apart(runs: pd.DataFrame, question: Question) -> None:
    """Refuse runs that differ in a setting outside --by and --tuned."""
    spoken = {*question.columns, question.trial}
    others = [str(column) for column in runs if column not in spoken]
    trials = runs.groupby([*question.point, question.seed], sort=False)[others].nunique(
        dropna=False
    )
    settings = [column for column in others if (trials[column] == 1).all()]
    runs = runs[[*question.point, question.seed, *settings]].drop_duplicates()
    values = runs.groupby(question.point, sort=False)[settings].nunique(dropna=False)
    by_seed = runs.groupby(question.seed)[settings].nunique(dropna=False)
    several = runs.groupby(question.point).size().gt(1).any()
    apart = []
    for column in settings:
        different = runs[column].nunique(dropna=False)
        fixed = (values[column] == 1).all()
        mixed = (
            column.startswith(_SETTINGS)
            and different < len(runs)
            and not (by_seed[column] == 1).all()
        )
        if different > 1 and several and (fixed or mixed):
            apart.append(column)
    if apart:
        more = f" and {len(apart) - _MAX_NAMED} more" if len(apart) > _MAX_NAMED else ""
        raise ConfigError(
            f"runs differ in {', '.join(apart[:_MAX_NAMED])}{more}, which --by leaves out",
            "--by",
            "add settings that define a configuration to --by or --tuned, then --ignore the "
            f"rest: {','.join(apart)}",
        )


def _with_scores(trial: Trial, rows: pd.DataFrame, question: Question) -> Trial:
    """Return a trial with the evaluations in its rows; it failed if there are none."""
    scored = rows[rows[question.score].notna()]
    steps = scored[question.step] if question.step in rows else scored[question.score] * 0
    if steps.duplicated().any():
        raise _same_twice(scored, question, trial)
    values = scored[question.score].set_axis(steps).sort_index()
    if values.empty or not math.isfinite(values.iloc[-1]):
        return replace(trial, reason="no score")
    curve = Curve(tuple(map(int, values.index)), tuple(map(float, values)))
    trial = replace(trial, state="COMPLETE", reason="", score=curve.end(question.window))
    if question.step in rows:
        trial = replace(trial, step=float(curve.steps[-1]))
    if len(curve.steps) > 1:
        trial = replace(trial, curves={question.score: curve})
    return trial


def _same_twice(rows: pd.DataFrame, question: Question, trial: Trial) -> ConfigError:
    differ = [
        str(column) for column in rows if rows[column].nunique() > 1 and column != question.score
    ]
    named = f"; its rows differ in {', '.join(differ[:_MAX_NAMED])}" if differ else ""
    return ConfigError(
        f"{_text(trial.parameters)} has seed {trial.seed} several times{named}",
        question.source,
        "drop a repeated run, name what makes a configuration with --by, or the training step with "
        "--step",
    )


def _check_seeds(trials: Sequence[Trial], baseline: str, question: Question) -> None:
    """Refuse a single seed, seeds without effect, and arms that share no seed with the baseline."""
    scores: dict[str, list[float]] = defaultdict(list)
    seeds: dict[str, set[str]] = defaultdict(set)
    for trial in trials:
        seeds[trial.rule].add(trial.seed)
        if trial.state == "COMPLETE":
            scores[trial.configuration].append(trial.score)
    for name, of_arm in seeds.items():
        if not of_arm & seeds[baseline]:
            raise ConfigError(
                f"{name} and the baseline {baseline} share no seed",
                question.seed,
                "run both on the same seeds, or number those of each from 0",
            )
    repeated = [row for row in scores.values() if len(row) > 1]
    if not repeated:
        raise ConfigError(
            "every configuration has one seed, so noise cannot be estimated",
            question.seed,
            "run the baseline and what you compare with it on at least 3 seeds each",
        )
    if all(len(set(row)) == 1 for row in repeated):
        raise ConfigError(
            "all seeds of a configuration have exactly the same score: the runs are identical",
            question.seed,
            "check that the seed reaches data order and sampling, then run again",
        )


def _arm_names(points: Sequence[tuple[Any, ...]], question: Question) -> dict[tuple[Any, ...], str]:
    names = short_names(list(question.by))
    texts = {}
    for point in points:
        values = zip(question.by, point[: len(question.by)], strict=True)
        texts[point] = " ".join(f"{names[column]}={shown(value)}" for column, value in values)
    return texts


def _baseline(
    numbers: Mapping[tuple[Any, ...], str], arm: Mapping[tuple[Any, ...], str], question: Question
) -> tuple[tuple[str, ...], str | None]:
    """Return the arms, baseline first, and the baseline's configuration number if nothing is
    tuned.
    """
    for column in question.baseline:
        if column not in question.by:
            raise ConfigError(
                f"the baseline names {column}, which is not in --by",
                "--baseline",
                nearest(column, question.by),
            )
    matching = []
    for point in numbers:
        settings = dict(zip(question.by, point, strict=False))
        if all(_equal(settings[column], value) for column, value in question.baseline.items()):
            matching.append(point)
    arms = list(dict.fromkeys(arm[point] for point in matching))
    if len(arms) != 1:
        count = f"matches {len(arms)} configurations" if arms else "matches no configuration"
        named = "; ".join(dict.fromkeys(arm.values()))
        raise ConfigError(
            f"the baseline {_text(question.baseline)} {count}",
            "--baseline",
            f"choose among: {named}",
        )
    others = [name for name in dict.fromkeys(arm.values()) if name != arms[0]]
    return (arms[0], *others), None if question.tuned else numbers[matching[0]]


def _equal(value: Any, text: Any) -> bool:
    try:
        return float(value) == float(text)
    except (TypeError, ValueError):
        return str(value) == str(text)


def _text(parameters: Mapping[str, Any]) -> str:
    names = short_names(list(parameters))
    return " ".join(f"{names[name]}={shown(value)}" for name, value in parameters.items())


def _with_problems(results: Results, problems: pd.DataFrame) -> Results:
    """Return the results with the problems that each run solved.

    Raises:
        ConfigError: the problems do not reproduce the scores.
    """
    for column in ("trial", "problem", "correct"):
        if column not in problems:
            raise ConfigError(
                f"no column {column}", "--problems", nearest(column, map(str, problems.columns))
            )
    rated = problems.assign(
        correct=pd.to_numeric(problems.correct, errors="coerce"), trial=problems.trial.astype(str)
    )
    if rated.correct.isna().any():
        raise ConfigError(
            "a value in the column correct is missing or not a number",
            "--problems",
            "write 1 or 0 in the column correct",
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
                    "list all problems of every run, and name the column of the run with --trial",
                )
            trial = replace(trial, solved=tuple(map(float, accuracy)))
        trials.append(trial)
    return replace(results, trials=tuple(trials))
