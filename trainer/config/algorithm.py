"""The update rule: advantage, loss, tokens, and the corrections beside them."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainer.config.section import Count, NonNegative, Positive, Probability, Section
from trainer.config.variants import isolates

Advantage = Literal[
    "grpo", "dr_grpo", "rloo", "batch_std", "maxrl", "gdpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"
]
PolicyLossName = Literal[
    "clipped", "gspo", "gmpo", "cispo", "dppo_tv", "dppo_kl", "sapo", "clip_cov", "kl_cov", "lp_reg"
]
Aggregation = Literal["token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "constant"]

# The clip ranges and aggregations of the rules' authors; the first is that of arXiv:2505.12929.
_CLIP = {
    "clipped": (0.2, 0.24),
    "gspo": (3e-4, 4e-4),
    "gmpo": (0.4, 0.4),
    "cispo": (1.0, 4.0),
    "clip_cov": (0.2, 0.2),
    "lp_reg": (1.0, 9.0),
}
_CHOSEN_SHARE = {"clip_cov": 2e-4, "kl_cov": 2e-4, "lp_reg": 0.01}
_AGGREGATION: Mapping[str, Aggregation] = dict.fromkeys(("gspo", "gmpo", "sapo"), "seq_mean_token_mean")
_OF_COMPLETIONS = {  # the sum is LUSPO [arXiv:2602.05261]
    "gspo": ("seq_mean_token_mean", "seq_mean_token_sum"),
    "gmpo": ("seq_mean_token_mean",),
}
_REWARD_PLACED_KL = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")


class EngineCorrection(Section):
    """Factors of the policy losses for the ratio of trainer and engine probability."""

    level: Literal["token", "sequence", "geometric_mean"] = Field(
        "token", description="ratio of each token, of its completion, or the completion's geometric mean per token"
    )
    rule: Literal["truncate", "mask"] = Field(
        "truncate", description="truncate the ratio at the cap, or mask tokens whose ratio is outside floor to cap"
    )
    cap: Positive = Field(2.0, description="largest ratio of trainer and engine probability")
    floor: NonNegative = Field(0.0, description="rule mask: smallest ratio (IcePop: 0.5 with a cap of 2 to 5)")

    @model_validator(mode="after")
    def _check(self) -> "EngineCorrection":
        if self.floor >= self.cap:
            raise ValueError("floor must be below cap")
        if self.floor > 0 and self.rule == "truncate":
            raise ValueError("a floor needs rule: mask")
        return self


class AlgorithmConfig(Section):
    """The update rule [AR and Lopti: arXiv:2505.12929]."""

    advantage: Advantage = Field("grpo", description="advantage estimator")
    gamma: Probability = Field(1.0, description="discount of reinforce_plus_plus returns per token")
    ar_alpha: Probability = Field(0.0, description="Advantage Reweighting strength alpha; 0 is off")
    lopti_eta: Probability = Field(0.0, description="Lopti probability threshold eta; 0 is off")
    lopti_order: Literal["low_first", "high_first"] = Field("low_first", description="order of the two passes")
    lopti_split: Literal["probability", "random"] = Field(
        "probability", description="random: a random split of the same sizes (control)"
    )
    token_filter: Literal["none", "drop_high", "drop_low", "high_entropy", "rsi"] = Field(
        "none",
        description="drop_high, drop_low: update only tokens below, above lopti_eta in one pass (controls); "
        "high_entropy: only those of the highest entropy, rsi: those of a surprisal near it, in each "
        "of Lopti's passes",
    )
    entropy_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.2, description="share of the tokens that token_filter high_entropy keeps"
    )
    rsi_low: NonNegative = Field(0.5, description="token_filter rsi: least surprisal / entropy of a token kept")
    rsi_high: Positive = Field(2.0, description="token_filter rsi: largest surprisal / entropy of a token kept")
    mask_truncated: bool = Field(
        False, description="leave completions that ran into the token limit out of the update and its token count"
    )
    loss: PolicyLossName = Field("clipped", description="loss of a token from its importance ratio")
    clip_ratio_low: Probability | None = Field(
        None,
        description="lower clip of the ratio: 1 - this; null: clipped and clip_cov 0.2, gspo 0.0003, cispo and "
        "lp_reg 1; of the log-ratio: gmpo 0.4",
    )
    clip_ratio_high: NonNegative | None = Field(
        None,
        description="upper clip of the ratio: 1 + this; null: clipped 0.24, clip_cov 0.2, gspo 0.0004, cispo 4, "
        "lp_reg 9; of the log-ratio: gmpo 0.4",
    )
    dual_clip: Annotated[float, Field(gt=1)] = Field(
        10.0, description="dual clip c of the loss clipped, for negative advantages"
    )
    dppo_threshold: Positive | None = Field(
        None, description="divergence at which dppo holds a token back; null: tv 0.2, kl 0.05"
    )
    sapo_tau_positive: Positive = Field(1.0, description="sharpness of sapo's gate for positive advantages")
    sapo_tau_negative: Positive = Field(1.05, description="sharpness of sapo's gate for the other advantages")
    chosen_share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="share of the tokens that clip_cov holds still, kl_cov pulls back (null: 0.0002), of those "
        "with A < 0 that lp_reg protects (null: 0.01)",
    )
    chosen_coef: NonNegative = Field(1.0, description="weight of kl_cov's and lp_reg's penalty")
    entropy_coef: NonNegative = Field(
        0.0, description="weight of the entropy bonus; with entropy_target that of the first step"
    )
    entropy_target: Positive | None = Field(
        None,
        description="adaptive bonus: the weight rises by 0.005 a step while the entropy is below this, and falls, "
        "without effect, above; null is constant [nats]",
    )
    log_ratio_coef: NonNegative = Field(
        0.0, description="weight of (log r)^2, which keeps the policy near the old one, in every loss; DPPO 0.001"
    )
    loss_aggregation: Literal["auto", "token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "constant"] = Field(
        "auto",
        description="aggregation of token losses; constant divides by max_new_tokens (Dr. GRPO); auto: "
        "seq_mean_token_mean for gspo, gmpo and sapo, else token_mean",
    )
    update_epochs: Count = Field(1, description="epochs of the update over the rollout batch")
    kl_coef: NonNegative = Field(0.001, description="KL coefficient; 0 loads no reference")
    kl_estimator: Literal["k1", "k2", "k3"] = Field("k3", description="estimator of the KL in the loss")
    kl_log_ratio_clamp: Positive | None = Field(
        20.0,
        description="bound of the log-ratio in k3, whose value is at most 10; 5 in the published code of AR and "
        "Lopti; null bounds neither, as TRL [nats]",
    )
    kl_placement: Literal["auto", "loss", "reward"] = Field(
        "auto", description="auto: reward for reinforce_plus_plus, loss for the others"
    )
    engine_correction: EngineCorrection | None = Field(
        None, description="weights for an engine whose probabilities differ from the trainer's; null is off"
    )

    @property
    def isolates(self) -> bool:
        """Whether the update takes Lopti's two passes."""
        return isolates(self.lopti_eta, self.token_filter)

    @property
    def kl_in_loss(self) -> bool:
        """Whether the KL penalty is a term of the loss (otherwise of the token rewards)."""
        placement = self.kl_placement
        return placement == "loss" or (placement == "auto" and self.advantage != "reinforce_plus_plus")

    @property
    def has_penalty(self) -> bool:
        """Whether a token without advantage has a gradient."""
        has_kl = self.kl_coef > 0 and self.kl_in_loss
        return has_kl or self.log_ratio_coef > 0 or self.loss == "kl_cov" or self.has_entropy_bonus

    @property
    def has_entropy_bonus(self) -> bool:
        """Whether the loss may have an entropy bonus."""
        return self.entropy_coef > 0 or self.entropy_target is not None

    @property
    def proxy_min_p(self) -> float:
        """Share of the largest probability below which lp_reg's proxy has no token; 0 without a proxy."""
        return 0.02 if self.loss == "lp_reg" else 0.0

    @property
    def share_of_chosen(self) -> float:
        """The share of tokens that the loss singles out, in force."""
        return _CHOSEN_SHARE.get(self.loss, 0.0) if self.chosen_share is None else self.chosen_share

    @property
    def clip_low(self) -> float:
        """The lower clip range in force."""
        return _CLIP.get(self.loss, (0.0, 0.0))[0] if self.clip_ratio_low is None else self.clip_ratio_low

    @property
    def clip_high(self) -> float:
        """The upper clip range in force."""
        return _CLIP.get(self.loss, (0.0, 0.0))[1] if self.clip_ratio_high is None else self.clip_ratio_high

    @property
    def aggregation(self) -> Aggregation:
        """The loss aggregation in force."""
        if self.loss_aggregation == "auto":
            return _AGGREGATION.get(self.loss, "token_mean")
        return self.loss_aggregation

    @model_validator(mode="after")
    def _check(self) -> "AlgorithmConfig":
        for refused, reason in (
            (
                self.token_filter in ("drop_high", "drop_low") and self.lopti_eta == 0,
                "token_filter needs a threshold: set algorithm.lopti_eta above 0",
            ),
            (
                self.lopti_split == "random" and not self.isolates,
                "lopti_split random splits Lopti's passes: set algorithm.lopti_eta above 0 and no drop_* filter",
            ),
            (
                self.kl_placement == "reward" and self.kl_coef > 0 and self.advantage not in _REWARD_PLACED_KL,
                f"{self.advantage} has no token rewards: set algorithm.kl_placement to loss",
            ),
            (
                self.aggregation not in _OF_COMPLETIONS.get(self.loss, (self.aggregation,)),
                f"{self.loss} has one ratio for a completion, and its loss is a mean over completions: set "
                f"algorithm.loss_aggregation to auto or {' or '.join(_OF_COMPLETIONS.get(self.loss, ()))}",
            ),
            (
                self.loss not in _CHOSEN_SHARE and self.chosen_share is not None,
                f"{self.loss} singles out no tokens: leave algorithm.chosen_share null",
            ),
            (
                self.loss not in _CLIP and (self.clip_ratio_low, self.clip_ratio_high) != (None, None),
                f"{self.loss} does not clip ratios: leave algorithm.clip_ratio_low and clip_ratio_high null",
            ),
            (
                not self.loss.startswith("dppo") and self.dppo_threshold is not None,
                f"{self.loss} has no divergence threshold: leave algorithm.dppo_threshold null",
            ),
            (self.rsi_low >= self.rsi_high, "rsi_low must lie below rsi_high"),
        ):
            if refused:
                raise ValueError(reason)
        return self
