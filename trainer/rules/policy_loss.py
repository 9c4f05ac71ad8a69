"""The interface of policy losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from trainer.rules.inputs import Gather, LossInputs, TokenLosses
from trainer.rules.rule import Rule
from trainer.types import Tensor, TrainBatch

if TYPE_CHECKING:
    import torch

Aggregation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant"]


class PolicyLoss(Rule):
    """What the importance ratio and the advantage of a token cost.

    Throughout, ``r = pi / pi_old = exp(logprob - old_logprob)``, A is the advantage (after AR),
    ``sg`` stops the gradient, and a loss is minimized. Tokens without advantage must have no
    gradient, unless the class says otherwise.
    """

    # that make sense, the default first
    aggregations: ClassVar[tuple[Aggregation, ...]] = get_args(Aggregation)
    # whether a token's loss depends on its completion's other tokens
    whole_completions: ClassVar[bool] = False
    has_penalty: ClassVar[bool] = False  # whether a token without advantage may have a gradient
    # fraction of the largest probability below which a proxy drops tokens
    proxy_min_p: ClassVar[float] = 0.0

    def __call__(self, tokens: LossInputs) -> TokenLosses | Tensor:
        """Return the loss of every token, [B, T]."""
        raise NotImplementedError

    def choose(
        self, batch: TrainBatch, tokens: Tensor, gather: Gather, generator: torch.Generator | None
    ) -> Tensor | None:
        """Return the tokens that the loss singles out, [B, T] bool; None singles out none.

        They are chosen once for a rollout batch, from its advantages before AR and the
        log-probabilities of before the update, so that neither microbatches nor ranks nor AR change
        the choice.

        Args:
            batch: the scored batch of this rank with advantages.
            tokens: [B, T], 1 at the tokens that a mean over tokens counts.
            gather: returns the items of all ranks.
            generator: of random choices; None chooses in row order.
        """
        return None
