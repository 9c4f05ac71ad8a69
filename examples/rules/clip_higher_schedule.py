"""A rule with a state: the upper clip rises while the entropy is below a target, else falls."""

from trainer.rules import LossInputs, NonNegative, RuleState, StepSummary, TokenLosses
from trainer.rules.losses.clipped import Clipped


class ClipHigherSchedule(Clipped):
    """`Clipped`, whose upper clip starts at ``clip_ratio_high``."""

    needs_distributions = True
    target_entropy: NonNegative = 0.3

    def initial_state(self) -> RuleState:
        return {"high": self.clip_ratio_high}

    def next_state(self, state: RuleState, summary: StepSummary) -> RuleState:
        return {"high": max(0.2, state["high"] + 0.1 * (self.target_entropy - summary.entropy))}

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        moved = self.model_copy(update={"clip_ratio_high": tokens.state["high"]})
        return Clipped.__call__(moved, tokens)
