"""The update rule: advantage, loss, tokens, and the corrections beside them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trainer.config.section import Count, NonNegative, Positive, Probability, Section

Advantage = Literal[
    "grpo", "dr_grpo", "rloo", "batch_std", "maxrl", "reinforce_plus_plus", "reinforce_plus_plus_baseline"
]
PolicyLossName = Literal["clipped", "gspo", "cispo", "dppo_tv", "dppo_kl", "sapo"]
Aggregation = Literal["token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "constant"]

# The clip ranges and aggregations of the rules' authors; the first is that of arXiv:2505.12929.
_CLIP = {"clipped": (0.2, 0.24), "gspo": (3e-4, 4e-4), "cispo": (1.0, 4.0)}
_AGGREGATION: Mapping[str, Aggregation] = {"gspo": "seq_mean_token_mean", "sapo": "seq_mean_token_mean"}
_REWARD_PLACED_KL = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")


class AlgorithmConfig(Section):
    """The update rule [AR and Lopti: arXiv:2505.12929]."""

    advantage: Advantage = Field("grpo", description="advantage estimator")
    gamma: Probability = Field(1.0, description="discount of reinforce_plus_plus returns per token")
    ar_alpha: Probability = Field(0.0, description="Advantage Reweighting strength alpha; 0 is off")
    lopti_eta: Probability = Field(0.0, description="Lopti probability threshold eta; 0 is off")
    lopti_order: Literal["low_first", "high_first"] = Field("low_first", description="which tokens go first")
    lopti_split: Literal["probability", "random"] = Field(
        "probability", description="random: a split of the same size without the idea (control)"
    )
    token_filter: Literal["none", "drop_high", "drop_low", "high_entropy"] = Field(
        "none",
        description="drop_*: update only tokens below / from lopti_eta on, in one pass (control); high_entropy: "
        "only those of the highest entropy, in each of Lopti's passes",
    )
    entropy_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.2, description="share of the tokens that token_filter high_entropy keeps"
    )
    mask_truncated: bool = Field(
        False, description="leave completions that ran into the token limit out of the update"
    )
    mask_zero_advantages: bool = Field(
        False,
        description="leave tokens without advantage out of the update, e.g. those of groups that all score alike; "
        "without a KL penalty in the loss they always are",
    )
    loss: PolicyLossName = Field("clipped", description="loss of a token from its importance ratio")
    clip_ratio_low: Probability | None = Field(
        None, description="lower clip of the ratio: 1 - this; null: clipped 0.2, gspo 0.0003, cispo 1"
    )
    clip_ratio_high: NonNegative | None = Field(
        None, description="upper clip of the ratio: 1 + this; null: clipped 0.24, gspo 0.0004, cispo 4"
    )
    dual_clip: Annotated[float, Field(gt=1)] = Field(
        10.0, description="dual clip c of the loss clipped, for negative advantages"
    )
    dppo_threshold: Positive | None = Field(
        None, description="divergence at which dppo holds a token back; null: tv 0.2, kl 0.05"
    )
    sapo_tau_positive: Positive = Field(1.0, description="sharpness of sapo's gate for positive advantages")
    sapo_tau_negative: Positive = Field(1.05, description="the same for the others")
    loss_aggregation: Literal["auto", "token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "constant"] = (
        Field(
            "auto",
            description="how token losses become one number; constant divides by max_new_tokens (Dr. GRPO); auto: "
            "seq_mean_token_mean for gspo and sapo, else token_mean",
        )
    )
    update_epochs: Count = Field(1, description="times the update goes over the rollout batch")
    kl_coef: NonNegative = Field(0.001, description="KL penalty against the reference; 0 loads no reference")
    kl_estimator: Literal["k1", "k2", "k3"] = Field("k3", description="estimator of the KL in the loss")
    kl_gradient: Literal["plain", "unbiased"] = Field(
        "plain", description="unbiased: the penalty in the loss times pi / pi_old, as TRL"
    )
    kl_log_ratio_clamp: Positive | None = Field(
        20.0,
        description="bound of the log-ratio in k3; 5 in the published code of AR and Lopti; null is off [nats]",
    )
    kl_value_clamp: Positive | None = Field(10.0, description="bound of k3's value; null is off [nats]")
    kl_placement: Literal["auto", "loss", "reward"] = Field(
        "auto", description="auto: reward for reinforce_plus_plus, loss for the others"
    )
    importance_sampling_cap: Positive | None = Field(
        None, description="correction for the engine: cap of trainer / engine probability; null is off"
    )
    importance_sampling_floor: NonNegative = Field(
        0.0, description="rule mask: ratios below this are masked, too (IcePop: 0.5 with a cap of 2 to 5)"
    )
    importance_sampling_level: Literal["token", "sequence", "geometric_mean"] = Field(
        "token", description="ratio of a token, of its completion, or the completion's mean per token"
    )
    importance_sampling_rule: Literal["auto", "truncate", "mask"] = Field(
        "auto", description="cut ratios to the cap, or leave out what lies outside; auto: truncate for token"
    )

    @property
    def isolates(self) -> bool:
        """Whether the update is done in Lopti's two passes."""
        return self.lopti_eta > 0 and self.token_filter not in ("drop_high", "drop_low")

    @property
    def kl_in_loss(self) -> bool:
        """Whether the KL penalty is a term of the loss (otherwise of the token rewards)."""
        placement = self.kl_placement
        return placement == "loss" or (placement == "auto" and self.advantage != "reinforce_plus_plus")

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

    @property
    def importance_rule(self) -> Literal["truncate", "mask"]:
        """The rule of the engine correction in force."""
        if self.importance_sampling_rule == "auto":
            return "truncate" if self.importance_sampling_level == "token" else "mask"
        return self.importance_sampling_rule

    @model_validator(mode="before")
    @classmethod
    def _read_old_key(cls, data: Any) -> Any:
        # Configurations saved before the losses had names call the advantage estimator `name`.
        if isinstance(data, Mapping) and "name" in data and "advantage" not in data:
            return {"advantage" if key == "name" else key: value for key, value in data.items()}
        return data

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
                self.kl_gradient == "unbiased" and self.kl_coef > 0 and not self.kl_in_loss,
                "a KL penalty in the reward has no gradient: set algorithm.kl_gradient to plain",
            ),
            (
                self.loss == "gspo" and self.aggregation != "seq_mean_token_mean",
                "gspo has one ratio for a completion, and its loss is a mean over completions: set "
                "algorithm.loss_aggregation to seq_mean_token_mean or auto",
            ),
            (
                self.loss not in _CLIP and (self.clip_ratio_low, self.clip_ratio_high) != (None, None),
                f"{self.loss} does not clip ratios: leave algorithm.clip_ratio_low and clip_ratio_high null",
            ),
            (
                not self.loss.startswith("dppo") and self.dppo_threshold is not None,
                f"{self.loss} has no divergence threshold: leave algorithm.dppo_threshold null",
            ),
            (
                self.importance_sampling_floor >= (self.importance_sampling_cap or float("inf")),
                "importance_sampling_floor must lie below importance_sampling_cap",
            ),
            (
                self.importance_sampling_floor > 0 and self.importance_rule != "mask",
                "a floor masks: set algorithm.importance_sampling_rule to mask",
            ),
        ):
            if refused:
                raise ValueError(reason)
        return self
