"""Evaluation history of a run."""

from collections.abc import Container, Sequence

# final accuracy is the mean of this many last evaluations, as in arXiv:2505.12929
_FINAL_WINDOW = 3

Evaluation = tuple[int, float]  # training step, accuracy


def best_evaluation(
    evaluations: Sequence[Evaluation], steps: Container[int] | None = None
) -> Evaluation | None:
    """Return the evaluation with the highest accuracy, the earliest on ties, optionally only among
    ``steps``.
    """
    return max(
        (pair for pair in evaluations if steps is None or pair[0] in steps),
        key=lambda evaluation: evaluation[1],
        default=None,
    )


def final_metrics(evaluations: Sequence[Evaluation]) -> dict[str, float]:
    """Return the ``final/*`` metrics. Needs at least one evaluation."""
    best = best_evaluation(evaluations)
    assert best is not None
    last = [accuracy for _, accuracy in evaluations[-_FINAL_WINDOW:]]
    return {
        "final/best_accuracy": best[1],
        "final/best_step": float(best[0]),
        "final/accuracy": sum(last) / len(last),
    }
