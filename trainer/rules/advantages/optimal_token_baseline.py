"""Optimal token baseline: a baseline for every position of a completion."""

from typing import ClassVar, Literal

from trainer.rules.groups import group_means, is_varied
from trainer.rules.interface import Advantage, AdvantageInputs
from trainer.types import Tensor

_EPSILON = 1e-8  # as in verl


class OptimalTokenBaseline(Advantage):
    """``R - B_t`` with ``B_t = sum R W_t / sum W_t`` over the completions of the group that reach
    position t [arXiv:2602.07078].

    ``W_t = sum over j <= t of (1 - 2 pi_j + sum of pi_j^2)`` is the squared norm of the gradient of
    the completion's log-probability with respect to the logits up to t. It is large for completions
    of low-probability tokens, so they have more weight in the baseline. If only one completion is
    left, there is no baseline. Same as verl without engine weights, except in groups with equal
    rewards: the advantage is 0 here, but verl uses the raw reward at positions without a baseline.
    """

    needs_distributions: ClassVar[bool] = True

    name: Literal["optimal_token_baseline"] = "optimal_token_baseline"

    def __call__(self, inputs: AdvantageInputs) -> Tensor:
        assert inputs.gradient_norms is not None
        mask = inputs.completion_mask.double()
        weights = (inputs.gradient_norms.double().square() * mask).cumsum(dim=1) * mask
        _, group = inputs.group_ids.unique(return_inverse=True)
        count = int(group.max()) + 1
        _, sizes = group_means(inputs.rewards, inputs.group_ids)
        is_alone = (sizes == 1).to(mask.device)[:, None]
        has_spread = is_varied(inputs.rewards, inputs.group_ids).to(mask.device)[:, None]
        returns = inputs.rewards.double().to(mask.device)[:, None] * mask
        group = group.to(mask.device)

        def summed(values: Tensor) -> Tensor:
            """Return the sums over each completion's group, [B, T]."""
            zeros = values.new_zeros((count, values.shape[1]))
            return zeros.index_add(0, group, values)[group]

        baseline = summed(returns * weights) / (summed(weights) + _EPSILON)
        baseline = baseline * (summed(mask) > 1)
        return (returns - baseline * ~is_alone) * mask * has_spread
