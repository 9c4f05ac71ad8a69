"""Interface of advantage estimators."""

from typing import ClassVar, Literal

from trainer.rules.inputs import AdvantageInputs
from trainer.rules.rule import Rule
from trainer.types import Tensor

KlPlacement = Literal["loss", "reward"]


class Advantage(Rule):
    """Estimator of advantages per completion or per completion token.

    A group consists of the completions of one prompt. In a group of size 1 the advantage is the raw
    reward, as in verl. Compute reward statistics in float64. In float32 the mean of eight rewards
    of 0.7 is not exactly 0.7, and dividing by their tiny standard deviation turns the rounding
    error into an advantage.
    """

    # supported KL placements; the first is the default
    kl_placements: ClassVar[tuple[KlPlacement, ...]] = ("loss",)
    # whether the estimator compares completions of the same prompt
    needs_groups: ClassVar[bool] = True

    def __call__(self, inputs: AdvantageInputs) -> Tensor:
        """Return an advantage for every completion, [B], or for every token, [B, T]."""
        raise NotImplementedError
