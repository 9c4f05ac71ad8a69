"""Evaluation results by set, difficulty and source, with confidence intervals over problems."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from trainer.evaluation.estimators import accuracy_interval
from trainer.evaluation.evaluate import EvaluationResult, correct_by_problem, measured
from trainer.types import Rollout

Part = Literal["all", "difficulty", "source"]
EvaluationRow = dict[str, Any]  # column -> value


def evaluation_rows(result: EvaluationResult) -> list[EvaluationRow]:
    """Return one row per set, followed by rows per difficulty and per source if the set has
    several.

    Columns: set, by, value (difficulty or source, empty for all), problems, completions (total), k
    (completions per problem), the values of `measured`, low and high (95% interval of accuracy over
    problems), and the fractions timeouts and errors (scoring) and unparsed (scored, but no answer
    was extracted).
    """
    rows = []
    for name, rollouts in result.rollouts.items():
        values_of_k = result.values_of_k.get(name, ())
        rows.append(_row(name, "all", "", rollouts, values_of_k))
        parts: tuple[Part, ...] = ("difficulty", "source")
        for by in parts:
            values = sorted({getattr(r.problem, by) for r in rollouts}, key=_in_order)
            if len(values) > 1:
                for value in values:
                    part = [r for r in rollouts if getattr(r.problem, by) == value]
                    rows.append(_row(name, by, value, part, values_of_k))
    return rows


def _row(
    name: str, by: Part, value: str, rollouts: Sequence[Rollout], values_of_k: Sequence[int]
) -> EvaluationRow:
    count = len(rollouts)
    correct, completions = correct_by_problem(rollouts)
    low, high = accuracy_interval(correct / completions, completions)
    return {
        "set": name,
        "by": by,
        "value": value,
        "problems": len(correct),
        "completions": count,
        "k": count // len(correct),
        **measured(rollouts, values_of_k),
        "low": low,
        "high": high,
        "timeouts": sum(r.scoring == "timeout" for r in rollouts) / count,
        "errors": sum(r.scoring == "error" for r in rollouts) / count,
        "unparsed": sum(r.scoring == "ok" and not r.parsed for r in rollouts) / count,
    }


def _in_order(value: str) -> tuple[float, str]:
    """Return a sort key: numbers by value (bands by lower bound), then words."""
    head = value.split("-")[0]
    return (float(head), value) if head.replace(".", "", 1).isdigit() else (math.inf, value)
