"""`Clipped` - c H: c rises by 0.005 while H <= target, else it falls and is off [2505.22312]."""

from trainer.rules import LossInputs, RuleState, StepSummary, TokenLosses
from trainer.rules.losses.clipped import Clipped


class AdaptiveEntropy(Clipped):
    needs_entropies = needs_distributions = has_regularizer = True
    target: float = 0.2

    def initial_state(self) -> RuleState:
        return {"c": 0, "on": 1}

    def next_state(self, state: RuleState, summary: StepSummary) -> RuleState:
        on = int(summary.entropy <= self.target)
        return {"c": min(1, max(0, state["c"] + (0.005 if on else -0.005))), "on": on}

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        loss, *rest = super().__call__(tokens)
        return TokenLosses(loss - tokens.state["c"] * tokens.state["on"] * tokens.entropies, *rest)
