"""The results of an evaluation as a table, by set and difficulty, with intervals over problems."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trainer.evaluation.estimators import accuracy_interval
from trainer.evaluation.evaluate import EvaluationResult, correct_by_problem
from trainer.types import Rollout


@dataclass(frozen=True)
class EvaluationRow:
    """One set, or the part of it with one difficulty or from one source."""

    set: str
    by: Literal["all", "difficulty", "source"]
    value: str  # the difficulty or source; empty for all
    problems: int
    completions: int  # of all problems together
    accuracy: float  # mean over completions: avg@n
    low: float  # 95% interval of the accuracy, over problems
    high: float
    pass_at_k: float  # share of the problems that one of k completions solves
    k: int
    reward: float
    completion_length: float  # tokens
    truncated: float  # share of the completions, as are the following
    timeouts: float  # of the scoring
    errors: float  # of the scoring
    unparsed: float  # scored, but without a readable answer


def evaluation_rows(result: EvaluationResult) -> list[EvaluationRow]:
    """Return a row for every set, followed by one for each of its difficulties and sources where there are several."""
    rows = []
    for name, rollouts in result.rollouts.items():
        rows.append(_row(name, "all", "", rollouts))
        for by in ("difficulty", "source"):
            values = sorted({getattr(r.problem, by) for r in rollouts}, key=_in_order)
            if len(values) > 1:
                for value in values:
                    part = [r for r in rollouts if getattr(r.problem, by) == value]
                    rows.append(_row(name, by, value, part))
    return rows


def _row(
    name: str, by: Literal["all", "difficulty", "source"], value: str, rollouts: Sequence[Rollout]
) -> EvaluationRow:
    count = len(rollouts)
    correct, completions = correct_by_problem(rollouts)
    low, high = accuracy_interval(correct / completions, completions)
    return EvaluationRow(
        set=name,
        by=by,
        value=value,
        problems=len(correct),
        completions=count,
        accuracy=float((correct / completions).mean()),
        low=low,
        high=high,
        pass_at_k=float((correct > 0).mean()),
        k=count // len(correct),
        reward=math.fsum(r.reward for r in rollouts) / count,
        completion_length=sum(len(r.completion.token_ids) for r in rollouts) / count,
        truncated=sum(r.completion.finish_reason == "length" for r in rollouts) / count,
        timeouts=sum(r.scoring == "timeout" for r in rollouts) / count,
        errors=sum(r.scoring == "error" for r in rollouts) / count,
        unparsed=sum(r.scoring == "ok" and not r.parsed for r in rollouts) / count,
    )


def _in_order(value: str) -> tuple[float, str]:
    """Numbers by size (bands by their lower end), words after them."""
    head = value.split("-")[0]
    return (float(head), value) if head.replace(".", "", 1).isdigit() else (math.inf, value)
