"""Judge generated tables of runs whose truth is known. Checks signs, numbers of runs, and errors.

    python -m research.random_tables              # 800 plain and 400 hard tables, five minutes

Every table is written to a file as some program might have written it, and judged with the options
that a person would type. The truth is computed with plain loops from the numbers that made the
table, not from the file. Hard tables also have tasks, another name for the step, failed runs,
thousands separators, or smaller scores that are better.

A judgment is wrong if an arm has a wrong number of runs or of failed runs, a wrong mean, or a
difference with a wrong sign or size, or if it is called better or worse although its failed runs
could have decided that. An error is wrong if the table has no such fault.
"""

import argparse
import itertools
import json
import math
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import loptune as lt
from dashboards.statistics.arm_table import ArmRow
from loptune.errors import UserError
from research.tables import print_rows

Key = tuple[str, str, int]  # arm, task, seed
_ARMS = (
    ("grpo", "dapo", "gspo", "cispo", "dr_grpo"),
    ("0.1", "0.3", "0.5", "0.7", "1.0"),
    ("1e-06", "3e-06", "1e-05", "3e-05", "0.0001"),
)
_SEED_NAMES = ("seed", "Seed", "train_seed", "random_state", "rng_seed", "config.seed")
_STEP_NAMES = ("step", "timestep", "checkpoint", "tokens", "num_updates", "global_step", "epoch")
_LOSSES = ("eval_loss", "perplexity", "val_mse", "error_rate")
_SCORES = ("accuracy", "eval_reward", "success", "episode_return")
_TASKS = ("gsm8k", "math", "aime", "amc")
_TASK_NAMES = ("dataset", "env_id", "benchmark", "task")
_WINDOW = 3
_ROUNDING = 1e-4  # relative rounding error of numbers in the file


@dataclass
class Table:
    """A generated table with its truth."""

    number: int
    hard: bool
    rows: list[dict[str, Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    scores: dict[Key, float] = field(default_factory=dict)  # scores of the successful runs
    failed: set[Key] = field(default_factory=set)
    arms: list[str] = field(default_factory=list)
    sign: int = 1
    seeds_of_tasks_differ: bool = False
    refusals: tuple[str, ...] = ()  # codes of errors, one of which must occur
    may_be_judged: bool = False  # whether a verdict is correct, too
    traits: list[str] = field(default_factory=list)
    suffix: str = "csv"
    separator: str = ","
    thousands: str = ""


def made(number: int, hard: bool) -> Table:
    """Return a table; equal numbers give equal tables."""
    draw = np.random.default_rng([number, hard])
    table = Table(number, hard)
    kind = draw.integers(3)
    table.arms = list(_ARMS[kind][: draw.integers(2, 6)])
    draw.shuffle(table.arms)
    tasks = [""]
    if hard and draw.random() < 0.5:
        tasks = list(_TASKS[: draw.integers(2, 5)])
        table.traits.append("stratum")
        table.seeds_of_tasks_differ = bool(draw.random() < 0.3)
    if hard and draw.random() < 0.4:
        table.sign = -1
    scale = float(draw.choice([1.0, 100.0, 5000.0] if hard else [1.0, 1.0, 100.0, 5000.0]))
    _draw_scores(table, draw, tasks, scale)
    if hard and draw.random() < 0.4:
        _fail_some(table, draw)
    _write_rows(table, draw, tasks, scale)
    _choose_format(table, draw, scale)
    return table


def _draw_scores(table: Table, draw: np.random.Generator, tasks: list[str], scale: float) -> None:
    seeds = int(draw.integers(3, 9))
    same = draw.random() < 0.6 or len(tasks) > 1  # every arm has the same seeds
    level = {task: 0.5 + 0.3 * draw.random() for task in tasks}
    for index, arm in enumerate(table.arms):
        effect = draw.choice([0.0, 0.05, -0.05, 0.2]) if index else 0.0
        noise = draw.choice([0.01, 0.05])
        count = seeds if same else int(draw.integers(3, 9))
        first = 0 if same or draw.random() < 0.5 else 100 * index
        for place, task in enumerate(tasks):
            offset = 1000 * place if table.seeds_of_tasks_differ else 0
            for seed in range(count):
                score = level[task] + effect + noise * draw.standard_normal()
                table.scores[arm, task, first + seed + offset] = scale * float(score)


def _fail_some(table: Table, draw: np.random.Generator) -> None:
    """Make some runs fail: runs of the baseline, of another arm, or all runs of one other arm."""
    table.traits.append("failures")
    where = draw.integers(3)
    for key in list(table.scores):
        is_base = key[0] == table.arms[0]
        all_of_last = where == 2 and key[0] == table.arms[-1] and len(table.arms) > 2
        some = draw.random() < 0.25 and is_base == (where == 0)
        left = [other for other in table.scores if other[:2] == key[:2]]
        if all_of_last or (some and len(left) > 2):
            del table.scores[key]
            table.failed.add(key)


def _write_rows(table: Table, draw: np.random.Generator, tasks: list[str], scale: float) -> None:
    """Write the rows of the table, and the options that a person types."""
    by = str(draw.choice(["loss_type", "algo", "lr", "method", "variant"]))
    metric = str(draw.choice(_LOSSES if table.sign < 0 else _SCORES))
    seed_name = str(draw.choice(_SEED_NAMES if table.hard else _SEED_NAMES[:2]))
    task_name = str(draw.choice(_TASK_NAMES))
    step_name = str(draw.choice(_STEP_NAMES if table.hard else _STEP_NAMES[:1]))
    evaluations = int(draw.integers(4, 8)) if draw.random() < 0.5 else 1
    interval = int(draw.choice([1, 10, 500]))
    measures = [name for name in ("wall_time_s", "grad_norm") if draw.random() < 0.4]
    keys = [*table.scores, *table.failed]
    keys.sort(key=lambda key: (table.arms.index(key[0]), tasks.index(key[1]), key[2]))
    for arm, task, seed in keys:
        key = (arm, task, seed)
        has_failed = key in table.failed
        ends = [math.nan] if has_failed else _curve(table.scores[key], evaluations, draw, scale)
        for index, value in enumerate(ends):
            row: dict[str, Any] = {by: arm}
            if task:
                row[task_name] = task
            row |= {seed_name: seed, metric: value}
            if evaluations > 1:
                row[step_name] = interval * (index + 1)
            if table.failed:
                row["state"] = "failed" if has_failed else "finished"
            row |= {name: float(draw.random()) for name in measures}
            table.rows.append(row)
    table.options = {"by": by, "score": metric, "baseline": {by: table.arms[0]}, "fresh": True}
    if table.sign < 0:
        if draw.random() < 0.2:
            table.traits.append("no --mode")
            table.refusals = ("which-direction",)
        else:
            table.options["mode"] = "min"
    if len(tasks) > 1 and not table.refusals:
        asked = draw.integers(3)
        if asked == 0:
            table.traits.append("no --task")
            table.refusals = ("not-repeats", "repeated-run", "runs-not-told-apart")
            # if the seed determines the task in every arm, the task is like a part of the seed
            table.may_be_judged = table.seeds_of_tasks_differ
        elif asked == 1:
            table.options["task"] = task_name
        else:
            table.options["where"] = f"{task_name}={tasks[0]}"
            for key in list(table.scores):
                if key[1] != tasks[0]:
                    del table.scores[key]
            table.failed = {key for key in table.failed if key[1] == tasks[0]}
    if evaluations > 1:
        table.traits.append("evaluations")
    if not table.refusals and draw.random() < 0.08:
        table.traits.append("appended twice")
        table.rows = table.rows * 2
        table.refusals = ("repeated-run", "repeated-rows")
        # equal evaluations of the same step look like the log of a resumed run
        table.may_be_judged = evaluations > 1


def _curve(score: float, evaluations: int, draw: np.random.Generator, scale: float) -> list[float]:
    """Return the evaluations of a run whose last three have this mean."""
    if evaluations == 1:
        return [score]
    early = [score * float(draw.uniform(0.1, 0.9)) for _ in range(evaluations - _WINDOW)]
    moved = 0.01 * scale * draw.standard_normal(_WINDOW)
    return [*early, *(score + float(move) for move in moved - moved.mean())]


def _choose_format(table: Table, draw: np.random.Generator, scale: float) -> None:
    table.suffix = str(draw.choice(["csv", "csv", "tsv", "jsonl", "json"]))
    table.separator = "\t" if table.suffix == "tsv" else ","
    if table.suffix == "csv" and draw.random() < 0.3:
        table.separator = ";"
    if table.hard and scale == 5000.0 and table.suffix in ("csv", "tsv"):
        table.thousands = ","
        table.traits.append("thousands")


def write(table: Table, folder: Path) -> Path:
    """Write the table to a file in its format."""
    path = folder / f"runs-{table.number}.{table.suffix}"
    rows = [{key: _rounded(value) for key, value in row.items()} for row in table.rows]
    if table.suffix in ("jsonl", "json"):
        cells = [{k: None if v != v else v for k, v in row.items()} for row in rows]
        lines = [json.dumps(row) for row in cells]
        text = "\n".join(lines) + "\n" if table.suffix == "jsonl" else json.dumps(cells)
        path.write_text(text, encoding="utf-8")
        return path
    frame = pd.DataFrame(rows)
    if table.thousands:
        metric = table.options["score"]
        frame[metric] = [_with_thousands(value) for value in frame[metric]]
    frame.to_csv(path, index=False, sep=table.separator)
    return path


def _rounded(value: Any) -> Any:
    return float(f"{value:.8g}") if isinstance(value, float) else value


def _with_thousands(value: float) -> str:
    return "" if math.isnan(value) else f"{value:,.2f}"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a table: judged, an error, or wrong."""

    kind: str  # judged, refused, or a kind of error
    detail: str = ""


def check(table: Table, folder: Path) -> Outcome:
    """Judge a table, and compare the judgment with the truth."""
    path = write(table, folder)
    try:
        judgement = lt.judge(str(path), **table.options)
    except UserError as error:
        if error.code in table.refusals:
            return Outcome("refused", error.code)
        if not table.refusals and _is_true_refusal(table, error.code):
            return Outcome("refused", error.code)
        return Outcome("wrong refusal", f"{error.code}: {error.what}")
    except Exception:
        return Outcome("crash", traceback.format_exc(limit=-2))
    if table.refusals and not table.may_be_judged:
        return Outcome("not refused", f"expected {table.refusals[0]}")
    problems = []
    rows = {_arm_of(row, table): row for row in judgement.arms}
    for arm in _compared(table):
        if arm not in rows:
            problems.append(f"{arm} is missing")
        else:
            problems += _problems(table, arm, rows[arm])
    kinds = ("wrong n", "wrong mean", "wrong sign", "wrong size", "wrong claim")
    for kind, problem in itertools.product(kinds, problems):
        if problem.startswith(kind):
            return Outcome(kind, problem)
    return Outcome("wrong arms", problems[0]) if problems else Outcome("judged")


def _is_true_refusal(table: Table, code: str | None) -> bool:
    """Return whether too few successful runs are left to judge, as this error states."""
    left = Counter(key[0] for key in table.scores)
    return code == "one-seed" and bool(table.failed) and max(left.values(), default=0) < 2


def _arm_of(row: ArmRow, table: Table) -> str:
    """Return the arm of a row; numbers are displayed in another format than they are typed."""
    text = row.name.split(" ", 1)[-1].rpartition("=")[2]
    for arm in table.arms:
        same_number = _number(arm) is not None and _number(arm) == _number(text)
        if arm == text or same_number:
            return arm
    return row.name.split()[-1]


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _compared(table: Table) -> list[str]:
    return [arm for arm in table.arms if any(key[0] == arm for key in table.scores)]


def _runs(table: Table, arm: str) -> tuple[dict[tuple[str, int], float], int]:
    """Return (task, seed) -> score for an arm, and its number of failed runs. A seed that ran on
    all tasks is one run, which failed if it failed on one task.
    """
    scores = {key[1:]: score for key, score in table.scores.items() if key[0] == arm}
    failed = {key[1:] for key in table.failed if key[0] == arm}
    if "task" not in table.options or table.seeds_of_tasks_differ:
        return scores, len(failed)
    lost = {seed for _, seed in failed}
    kept = {key: score for key, score in scores.items() if key[1] not in lost}
    return kept, len(lost)


def _mean(scores: dict[tuple[str, int], float], table: Table) -> float:
    """Return the mean of the runs; with --task, the mean over tasks of their means."""
    if "task" not in table.options:
        return sum(scores.values()) / len(scores)
    by_task: dict[str, list[float]] = {}
    for (task, _), score in scores.items():
        by_task.setdefault(task, []).append(score)
    means = [sum(values) / len(values) for values in by_task.values()]
    return sum(means) / len(means)


def _problems(table: Table, arm: str, row: ArmRow) -> list[str]:
    scores, failed = _runs(table, arm)
    base, _ = _runs(table, table.arms[0])
    shares_seeds = "task" in table.options and not table.seeds_of_tasks_differ
    count = len({seed for _, seed in scores}) if shares_seeds else len(scores)
    if (row.runs, row.failed) != (count + failed, failed):
        return [f"wrong n of {arm}: {row.runs}, {row.failed} failed; {count + failed}, {failed}"]
    if not scores or not base:
        return []
    near = _ROUNDING * max(map(abs, [*scores.values(), *base.values()]))
    if abs(row.mean - _mean(scores, table)) > near:
        return [f"wrong mean of {arm}: {row.mean}, {_mean(scores, table)}"]
    if row.is_baseline or row.found is None:
        return []
    truth = _mean(scores, table) - _mean(base, table)
    shared = set(scores) & set(base)
    if row.layout in ("paired", "partly paired", "by task") and shared:
        pairs = {key: scores[key] - base[key] for key in shared}
        of_pairs = _mean(pairs, table)
        if row.layout == "paired":
            truth = of_pairs
        elif not min(truth, of_pairs) - near <= row.difference <= max(truth, of_pairs) + near:
            return [f"wrong size of {arm}: {row.difference}, {truth} to {of_pairs}"]
        else:
            truth = row.difference
    if abs(truth) > near and row.difference * truth < 0:
        return [f"wrong sign of {arm}: {row.difference}, {truth}"]
    if abs(row.difference - truth) > 2 * near:
        return [f"wrong size of {arm}: {row.difference}, {truth}"]
    if row.outcome in ("better", "worse"):
        return _wrong_claim(table, arm, row.outcome)
    return []


def _wrong_claim(table: Table, arm: str, outcome: str) -> list[str]:
    """Return the wrong claim about an arm, if there is one. Failed runs are counted against a
    claim: as the worst score for the claimed arm, and as the best for the other arm.
    """
    signed = {key: table.sign * score for key, score in table.scores.items()}
    everyone = list(signed.values())
    winner, loser = (arm, table.arms[0]) if outcome == "better" else (table.arms[0], arm)
    means = []
    for name, filler in ((winner, min(everyone)), (loser, max(everyone))):
        filled = {key[1:]: score for key, score in signed.items() if key[0] == name}
        filled |= {key[1:]: filler for key in table.failed if key[0] == name}
        means.append(_mean(filled, table))
    if means[0] > means[1]:
        return []
    text = f"wrong claim: {arm} {outcome}, with failed runs against it {means[0] - means[1]:+.3g}"
    return [text]


def count(plain: int, hard: int, folder: Path, show: bool = False) -> dict[str, Counter[str]]:
    """Return "plain" and "hard" -> kind of outcome -> number of tables."""
    counts: dict[str, Counter[str]] = {}
    for name, many in (("plain", plain), ("hard", hard)):
        counts[name] = Counter()
        for number in range(many):
            table = made(number, name == "hard")
            outcome = check(table, folder)
            counts[name][outcome.kind] += 1
            if show and outcome.kind not in ("judged", "refused"):
                traits = ", ".join(table.traits)
                print(f"{name} {number} ({traits}): {outcome.kind}: {outcome.detail}", flush=True)
    return counts


def main() -> None:
    """Print how many tables were judged or gave an error, and how many of these are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain", type=int, default=800)
    parser.add_argument("--hard", type=int, default=400)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = count(arguments.plain, arguments.hard, Path(folder), show=True)
    kinds = list(dict.fromkeys(["judged", "refused", *counts["plain"], *counts["hard"]]))
    rows = [[name, *(str(of_kind[kind]) for kind in kinds)] for name, of_kind in counts.items()]
    print_rows("Tables by outcome", ["tables", *kinds], rows)


if __name__ == "__main__":
    main()
