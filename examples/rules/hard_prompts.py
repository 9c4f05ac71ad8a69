"""A group statistic in a loss: rarely solved prompts get more weight, increasingly during
training.
"""

from trainer.rules import LossInputs, NonNegative, TokenLosses
from trainer.rules.losses.clipped import Clipped


class HardPrompts(Clipped):
    """`Clipped` times ``1 + strength (step / steps) (1 - group mean)``, for rewards 0 to 1."""

    strength: NonNegative = 1.0
    """additional weight of an unsolved prompt at the last step"""

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        progress = tokens.step / tokens.total_steps
        weight = 1 + self.strength * progress * (1 - tokens.group_means).clamp(0, 1)
        result = super().__call__(tokens)
        return result._replace(losses=result.losses * weight)
