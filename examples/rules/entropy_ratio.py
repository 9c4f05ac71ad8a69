"""Entropy ratio clipping [arXiv:2512.05591], as in the authors' code. It reads entropies."""

from trainer.rules import LossInputs, Positive, TokenLosses
from trainer.rules.losses.clipped import Clipped


class EntropyRatio(Clipped):
    """`Clipped`, but 0 unless ``low < H / H_old < high``, with H the entropy of a token."""

    needs_entropies = needs_distributions = True
    low: Positive = 0.95
    """lower bound of the entropy ratio"""
    high: Positive = 1.05
    """upper bound of the entropy ratio"""

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        ratio = (tokens.entropies.detach() + 1e-8) / (tokens.old_entropies + 1e-8)
        is_near = (ratio > self.low) & (ratio < self.high)
        losses, clipped, dual_clipped = super().__call__(tokens)
        return TokenLosses(losses * is_near, clipped | ~is_near, dual_clipped)
