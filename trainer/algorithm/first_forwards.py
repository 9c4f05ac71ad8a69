"""What an update's forwards say of the policy before it, where the engine's log-probabilities are the old ones."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from trainer.policy.logprobs import TokenScores
from trainer.types import TrainBatch


@dataclass(frozen=True)
class FirstForwards:
    """What a token's first forward of a training step found. Tensors [B, T], filled as the update goes on."""

    logprobs: Tensor
    entropies: Tensor
    gradient_norms: Tensor
    known: Tensor  # 1 at tokens that a forward was asked for
    unmoved: Tensor  # 1 at those of them that were met before the first optimizer step

    @classmethod
    def of(cls, batch: TrainBatch) -> "FirstForwards":
        """Those of a batch that has not been updated on."""
        return cls(*(torch.zeros_like(batch.completion_mask) for _ in range(5)))

    def complete(self, batch: TrainBatch) -> TrainBatch:
        """The batch with the entropies and gradient norms found."""
        return replace(batch, entropies=self.entropies, gradient_norms=self.gradient_norms)

    def wants(self, rows: Tensor, asked: Tensor) -> bool:
        """Whether any of the tokens asked for, [b, t], is met for the first time."""
        return bool((asked > self.known[rows, : asked.shape[1]]).any())

    def add(self, rows: Tensor, asked: Tensor, scores: TokenScores, is_unmoved: bool) -> None:
        """Note what the forward of some rows found.

        Args:
            rows: [b].
            asked: 1 at the tokens it was asked for, [b, t].
            scores: with entropies.
            is_unmoved: whether the weights are still those of before the update.
        """
        assert scores.entropies is not None and scores.gradient_norms is not None
        width = asked.shape[1]
        new = asked * (1 - self.known[rows, :width])
        for noted, found in (
            (self.logprobs, scores.logprobs.detach()),
            (self.entropies, scores.entropies),
            (self.gradient_norms, scores.gradient_norms),
        ):
            noted[rows, :width] += new * pad(found, (0, width - found.shape[1]))
        self.known[rows, :width] += new
        if is_unmoved:
            self.unmoved[rows, :width] += new
