"""STARE with moving weights [arXiv:2606.19236, section 4.4]: a state added to another rule."""

from trainer.rules import LossInputs, RuleState, StepSummary, TokenLosses
from trainer.rules.papers.stare import Stare


class MovingStare(Stare):
    """`Stare`, whose weights both move by 0.01 after each step, away from 1 while H < target."""

    def initial_state(self) -> RuleState:
        return {"amplify": self.amplify, "attenuate": self.attenuate}

    def next_state(self, state: RuleState, summary: StepSummary) -> RuleState:
        move = 0.01 if summary.entropy < self.target_entropy else -0.01
        amplify, attenuate = state["amplify"] + move, state["attenuate"] - move
        return {"amplify": min(1.5, max(1, amplify)), "attenuate": min(1, max(0.5, attenuate))}

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        return Stare.__call__(self.model_copy(update=dict(tokens.state)), tokens)
