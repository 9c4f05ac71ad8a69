"""Optimal token baseline: a baseline for every position of a completion."""

from typing import ClassVar, Literal

from trainer.rules.groups import centered
from trainer.rules.interface import Advantage, AdvantageInputs
from trainer.types import Tensor

_EPSILON = 1e-8  # as in verl


class OptimalTokenBaseline(Advantage):
    """``R - B_t`` with ``B_t = sum R W_t / sum W_t`` over the completions of the group that reach
    position t [arXiv:2602.07078].

    ``W_t = sum over j <= t of (1 - 2 pi_j + sum of pi_j^2)`` is the squared norm of the gradient of
    the completion's log-probability with respect to the logits up to t: a completion of
    low-probability tokens has a large one and counts more. Where only one completion is left, there
    is no baseline. Same as verl without engine weights, except in groups with equal rewards, which
    are 0 here: verl's tails without a baseline train on them.
    """

    needs_distributions: ClassVar[bool] = True

    name: Literal["optimal_token_baseline"] = "optimal_token_baseline"

    def __call__(self, inputs: AdvantageInputs) -> Tensor:
        assert inputs.gradient_norms is not None
        mask = inputs.completion_mask.double()
        weights = (inputs.gradient_norms.double().square() * mask).cumsum(dim=1) * mask
        rewards = inputs.rewards.double()
        has_spread = centered(inputs.rewards, inputs.group_ids) != 0
        advantages = mask.new_zeros(mask.shape)
        for group in inputs.group_ids.unique():
            rows = (inputs.group_ids == group).nonzero().flatten()
            returns = rewards[rows].to(mask.device)[:, None] * mask[rows]
            if len(rows) == 1:
                advantages[rows] = returns
            elif has_spread[rows].any():
                baseline = (returns * weights[rows]).sum(dim=0)
                baseline = baseline / (weights[rows].sum(dim=0) + _EPSILON)
                baseline = baseline * (mask[rows].sum(dim=0) > 1)
                advantages[rows] = (returns - baseline) * mask[rows]
        return advantages
