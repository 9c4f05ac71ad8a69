"""The interface of advantage estimators."""

from typing import ClassVar, Literal

from trainer.rules.inputs import AdvantageInputs
from trainer.rules.rule import Rule
from trainer.types import Tensor

KlPlacement = Literal["loss", "reward"]


class Advantage(Rule):
    """How rewards become one number per completion, or per completion token.

    A group is the completions of one prompt. A group of one keeps its raw reward, as in verl.
    Compute statistics of rewards in float64: in float32 the mean of eight rewards of 0.7 is not
    0.7, and a division by their spread makes an advantage of the rounding.
    """

    # of the KL penalty; the first is the default
    kl_placements: ClassVar[tuple[KlPlacement, ...]] = ("loss",)
    needs_groups: ClassVar[bool] = True  # whether completions of one prompt are compared

    def __call__(self, inputs: AdvantageInputs) -> Tensor:
        """Return an advantage for every completion, [B], or for every token, [B, T]."""
        raise NotImplementedError
