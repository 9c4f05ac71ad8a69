"""Settings of the update rule: advantage, loss, token selection and corrections."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, SerializeAsAny, model_validator

from loptune.section import (
    Count,
    Fraction,
    NonNegative,
    Positive,
    Probability,
    Section,
    needs,
    refusal,
)
from trainer.config.variants import isolates
from trainer.rules.interface import Advantage, Aggregation, KlPlacement, PolicyLoss
from trainer.rules.kinds import ADVANTAGE, LOSS

_Advantage = Annotated[SerializeAsAny[Advantage], BeforeValidator(ADVANTAGE.read), ADVANTAGE]
_Loss = Annotated[SerializeAsAny[PolicyLoss], BeforeValidator(LOSS.read), LOSS]


class RolloutCorrection(Section):
    """Importance-sampling correction for the mismatch between engine and trainer probabilities."""

    level: Literal["token", "sequence", "geometric_mean"] = "token"
    """ratio used: per token, per completion, or the geometric mean over the completion"""
    rule: Literal["truncate", "mask"] = "truncate"
    """truncate: clip the ratio at cap; mask: drop tokens whose ratio is outside [floor, cap]"""
    cap: Positive = 2.0
    """upper bound of the ratio pi_trainer / pi_engine"""
    floor: NonNegative = needs("rule=mask", 0.0)
    """lower bound of the ratio (IcePop: 0.5 with a cap of 2 to 5)"""

    @model_validator(mode="after")
    def _check(self) -> "RolloutCorrection":
        if self.floor >= self.cap:
            raise refusal("floor-not-below-cap", "floor must be below cap")
        return self


class AlgorithmConfig(Section):
    """The update rule [AR and Lopti: arXiv:2505.12929]."""

    advantage: _Advantage = ADVANTAGE.read(ADVANTAGE.default)
    """advantage estimator: a name, or a mapping of name and parameters"""
    ar_alpha: Probability = 0.0
    """Advantage Reweighting strength alpha; 0 is off"""
    lopti_eta: Probability = 0.0
    """Lopti probability threshold eta; 0 is off"""
    lopti_order: Literal["low_first", "high_first"] = needs("lopti_eta", "low_first")
    """which tokens Lopti's first pass updates"""
    lopti_split: Literal["probability", "random"] = needs("lopti_eta", "probability")
    """probability: split at lopti_eta; random: random split of the same sizes (control)"""
    token_filter: Literal["none", "drop_high", "drop_low", "interval", "high_entropy"] = "none"
    """drop_high: update only tokens below lopti_eta; drop_low: only tokens above it; interval: only
    tokens in filter_interval (single-pass controls); high_entropy: only the highest-entropy tokens,
    in each of Lopti's passes
    """
    filter_interval: tuple[Probability, Probability] = needs("token_filter=interval", (0.0, 0.5))
    """probabilities [low, high) of the tokens that token_filter=interval updates; a high of 1
    includes 1
    """
    entropy_fraction: Fraction = needs("token_filter=high_entropy", 0.2)
    """fraction of tokens kept by token_filter=high_entropy"""
    mask_truncated: bool = False
    """exclude truncated completions from the update and its token count"""
    loss: _Loss = LOSS.read(LOSS.default)
    """policy loss: a name, or a mapping of name and parameters"""
    entropy_coef: NonNegative = 0.0
    """weight of the entropy bonus"""
    log_ratio_coef: NonNegative = 0.0
    """weight of (log r)^2, added to any loss to keep the policy near the old one (DPPO: 0.001)"""
    loss_aggregation: Literal["auto", Aggregation] = "auto"
    """aggregation of token losses; constant divides by max_new_tokens (Dr. GRPO); auto: the default
    of the loss, which is seq_mean_token_mean for gspo, sapo and gmpo, and token_mean for others
    """
    update_epochs: Count = 1
    """update epochs per rollout batch (PPO epochs)"""
    kl_coef: NonNegative = 0.001
    """KL coefficient; at 0 no reference model is loaded"""
    kl_estimator: Literal["k1", "k2", "k3"] = needs("kl_coef", "k3")
    """KL estimator in the loss"""
    kl_log_ratio_clamp: Positive | None = needs("kl_coef", 20.0)
    """clamp on the log-ratio in k3, whose value is also clamped to 10; 5 in the published code of
    AR and Lopti; null disables both clamps, as in TRL [nats]
    """
    kl_placement: Literal["auto", KlPlacement] = needs("kl_coef", "auto")
    """where the KL penalty is added; auto: the default of the advantage, which is reward for
    reinforce_plus_plus, and loss for others
    """
    kl_importance_ratio: bool = needs("kl_coef", False)
    """multiply the KL penalty in the loss by pi / pi_old and differentiate the product, which is
    unbiased even off-policy; the default of TRL 1.16
    """
    rollout_correction: RolloutCorrection | tuple[RolloutCorrection, ...] | None = None
    """importance-sampling correction of engine probabilities; null is off. A list combines
    corrections: entries with rule mask drop tokens, and at most one with rule truncate sets the
    weights
    """
    off_policy_threshold: NonNegative | None = None
    """drop completions with a negative advantage if the mean over their tokens of log(pi_sampling /
    pi) exceeds this threshold (TRL suggests 0.5); null is off [nats]
    """

    @property
    def rollout_corrections(self) -> tuple[RolloutCorrection, ...]:
        """The rollout corrections as a tuple, empty if off."""
        if self.rollout_correction is None:
            return ()
        if isinstance(self.rollout_correction, RolloutCorrection):
            return (self.rollout_correction,)
        return self.rollout_correction

    @property
    def needs_entropies(self) -> bool:
        """Whether the loss reads the current policy's entropies."""
        return self.entropy_coef > 0 or self.loss.needs_entropies

    @property
    def needs_sequence_level(self) -> bool:
        """Whether a token's loss depends on the completion's other tokens."""
        moves_with_policy = self.off_policy_threshold is not None and not self.isolates
        return self.loss.sequence_level or moves_with_policy

    @property
    def isolates(self) -> bool:
        """Whether Lopti updates in two passes."""
        return isolates(self.lopti_eta, self.token_filter)

    @property
    def kl_in_loss(self) -> bool:
        """Whether the KL penalty is in the loss rather than in the token rewards."""
        placement = (
            self.advantage.kl_placements[0] if self.kl_placement == "auto" else self.kl_placement
        )
        return placement == "loss"

    @property
    def has_regularizer(self) -> bool:
        """Whether a token with zero advantage has a gradient."""
        has_kl = self.kl_coef > 0 and self.kl_in_loss
        return (
            has_kl or self.log_ratio_coef > 0 or self.entropy_coef > 0 or self.loss.has_regularizer
        )

    @property
    def needs_distributions(self) -> str:
        """The setting that needs next-token distributions from before the update; empty if none
        does.
        """
        if self.token_filter == "high_entropy":
            return f"token_filter {self.token_filter}"
        rules = {"loss": self.loss, "advantage": self.advantage}
        return next(
            (f"{key} {rule.name}" for key, rule in rules.items() if rule.needs_distributions), ""
        )

    @property
    def aggregation(self) -> Aggregation:
        """The effective loss aggregation, with auto resolved."""
        if self.loss_aggregation == "auto":
            return self.loss.aggregations[0]
        return self.loss_aggregation

    @model_validator(mode="after")
    def _check(self) -> "AlgorithmConfig":
        if self.token_filter in ("drop_high", "drop_low") and self.lopti_eta == 0:
            raise refusal(
                "filter-without-threshold",
                f"token_filter {self.token_filter} needs a threshold: set "
                "algorithm.lopti_eta above 0",
            )
        low, high = self.filter_interval
        if low >= high:
            raise refusal(
                "filter-interval-empty",
                f"filter_interval [{low}, {high}) contains no probability: set algorithm."
                "filter_interval to [low, high] with low below high",
            )
        if self.kl_coef > 0 and self.kl_placement not in ("auto", *self.advantage.kl_placements):
            raise refusal(
                "kl-placement-unsupported",
                f"advantage {self.advantage.name} does not support a KL penalty in the "
                f"{self.kl_placement}: set algorithm.kl_placement to auto",
            )
        if sum(correction.rule == "truncate" for correction in self.rollout_corrections) > 1:
            raise refusal(
                "several-truncates",
                "rollout_correction has several entries with rule truncate, but only one can set "
                "the weights: keep one, and set rule: mask in the other entries",
            )
        if self.aggregation not in self.loss.aggregations:
            raise refusal(
                "aggregation-unsupported",
                f"loss {self.loss.name} does not support aggregation {self.aggregation}: set "
                f"algorithm.loss_aggregation to auto or {' or '.join(self.loss.aggregations)}",
            )
        return self
