"""The results of an evaluation as a table, by set and difficulty, with intervals over problems."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from trainer.evaluation.estimators import accuracy_interval
from trainer.evaluation.evaluate import EvaluationResult, correct_by_problem, measured
from trainer.types import Rollout

Part = Literal["all", "difficulty", "source"]
Row = dict[str, Any]  # column -> value


def evaluation_rows(result: EvaluationResult) -> list[Row]:
    """Return a row for every set, followed by one for each of its difficulties and sources where
    there are several.

    A row has set, by, value (the difficulty or source; empty for all), problems, completions of all
    problems, k of each, what is `measured`, low and high of the accuracy's 95% interval over
    problems, and shares of completions: timeouts and errors of the scoring, and unparsed, scored
    without a readable answer.
    """
    rows = []
    for name, rollouts in result.rollouts.items():
        rows.append(_row(name, "all", "", rollouts))
        parts: tuple[Part, ...] = ("difficulty", "source")
        for by in parts:
            values = sorted({getattr(r.problem, by) for r in rollouts}, key=_in_order)
            if len(values) > 1:
                for value in values:
                    part = [r for r in rollouts if getattr(r.problem, by) == value]
                    rows.append(_row(name, by, value, part))
    return rows


def _row(name: str, by: Part, value: str, rollouts: Sequence[Rollout]) -> Row:
    count = len(rollouts)
    correct, completions = correct_by_problem(rollouts)
    low, high = accuracy_interval(correct / completions, completions)
    return {
        **{"set": name, "by": by, "value": value},
        **{"problems": len(correct), "completions": count, "k": count // len(correct)},
        **measured(rollouts),
        **{"low": low, "high": high},
        "timeouts": sum(r.scoring == "timeout" for r in rollouts) / count,
        "errors": sum(r.scoring == "error" for r in rollouts) / count,
        "unparsed": sum(r.scoring == "ok" and not r.parsed for r in rollouts) / count,
    }


def _in_order(value: str) -> tuple[float, str]:
    """Sort numbers by size (bands by their lower end), words after them."""
    head = value.split("-")[0]
    return (float(head), value) if head.replace(".", "", 1).isdigit() else (math.inf, value)
