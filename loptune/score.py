"""Compute the score of a run: the mean of its last evaluations."""

import math
from collections.abc import Container, Mapping, Sequence

Evaluation = tuple[int, float]  # training step, accuracy


def mean(values: Sequence[float]) -> float:
    """Return the mean of one or more values, even if their sum would overflow."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


def score(history: Mapping[int, float] | Mapping[float, float], window: int) -> float:
    """Return the score of a run: the mean of its last ``window`` finite evaluations; NaN without
    one.

    ``history`` maps training steps to values of the objective, in any order.
    """
    values = [value for _, value in sorted(history.items()) if math.isfinite(value)]
    last = values[-window:]
    return mean(last) if last else math.nan


def best_evaluation(
    evaluations: Sequence[Evaluation], steps: Container[int] | None = None
) -> Evaluation | None:
    """Return the evaluation with the highest accuracy, the first on ties, optionally only among
    ``steps``; None without an evaluation.
    """
    return max(
        (pair for pair in evaluations if steps is None or pair[0] in steps),
        key=lambda evaluation: evaluation[1],
        default=None,
    )


def final_metrics(evaluations: Sequence[Evaluation], window: int) -> dict[str, float]:
    """Return the ``final/*`` metrics. ``evaluations`` must not be empty. ``final/accuracy`` is the
    `score` over ``window`` evaluations.
    """
    best = best_evaluation(evaluations)
    assert best is not None
    return {
        "final/best_accuracy": best[1],
        "final/best_step": float(best[0]),
        "final/accuracy": score(dict(evaluations), window),
    }
