"""Interface of policy losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from trainer.rules.inputs import Gather, LossInputs, TokenLosses
from trainer.rules.rule import Rule
from trainer.types import Tensor, TrainBatch

if TYPE_CHECKING:
    import torch

Aggregation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant"]


class PolicyLoss(Rule):
    """A per-token policy loss from importance ratio and advantage.

    Throughout, ``r = pi / pi_old = exp(logprob - old_logprob)``, A is the advantage (after AR),
    ``sg`` is stop-gradient, and losses are minimized. Tokens with zero advantage must have no
    gradient unless ``has_penalty`` is set.
    """

    # supported aggregations, default first
    aggregations: ClassVar[tuple[Aggregation, ...]] = get_args(Aggregation)
    # whether a token's loss depends on other tokens of the completion
    whole_completions: ClassVar[bool] = False
    has_penalty: ClassVar[bool] = False  # whether a token with zero advantage may have a gradient
    # min-p threshold of the proxy distribution; 0: no proxy
    proxy_min_p: ClassVar[float] = 0.0

    def __call__(self, tokens: LossInputs) -> TokenLosses | Tensor:
        """Return the loss of every token, [B, T]."""
        raise NotImplementedError

    def choose(
        self, batch: TrainBatch, tokens: Tensor, gather: Gather, generator: torch.Generator | None
    ) -> Tensor | None:
        """Return the mask of tokens that the loss treats specially, [B, T] bool, or None.

        Called once per rollout batch, with advantages before AR and log-probabilities from before
        the update, so that the selection does not depend on microbatches, ranks or AR.

        Args:
            batch: the scored batch of this rank with advantages.
            tokens: [B, T], mask of the tokens that count in a token mean.
            gather: gathers items from all ranks.
            generator: generator for random selection; None selects in row order.
        """
        return None
