"""Every update rule, once: what the invariants are tested on."""

from typing import Any, get_args

from trainer.config.algorithm import Advantage, AlgorithmConfig, PolicyLossName

ADVANTAGES = {name: {"advantage": name} for name in get_args(Advantage)}
LOSSES = {name: {"loss": name} for name in get_args(PolicyLossName)}
RULES: dict[str, dict[str, Any]] = {
    **ADVANTAGES,
    **LOSSES,
    "clip_cov": {"loss": "clip_cov", "chosen_share": 1.0},  # of fewer, a random one is chosen on each rank
    "kl_cov": {"loss": "kl_cov", "chosen_share": 0.2},
    "lp_reg": {"loss": "lp_reg", "chosen_share": 0.5},
    "rsi": {"token_filter": "rsi", "rsi_low": 0.95, "rsi_high": 1.2},
    "entropy bonus": {"entropy_coef": 0.1},
    "luspo": {"loss": "gspo", "loss_aggregation": "seq_mean_token_sum"},
    "dppo near the old policy": {"loss": "dppo_tv", "log_ratio_coef": 0.1},
    "dr_grpo in full": {"advantage": "dr_grpo", "loss_aggregation": "constant"},
    "high entropy": {"token_filter": "high_entropy"},
    "no truncated": {"mask_truncated": True},
    "kl": {"kl_coef": 0.1},
    "icepop": {"engine_correction": {"rule": "mask", "floor": 0.5}},
    "sequence truncation": {"engine_correction": {"level": "sequence"}},
    "geometric mask": {"engine_correction": {"cap": 9.0, "level": "geometric_mean", "rule": "mask"}},
}


def rewards_of(rule: dict[str, Any]) -> tuple[float, float]:
    """Two rewards that the rule accepts."""
    return (3.0, 0.5) if rule.get("advantage") == "maxrl" else (3.0, -1.0)


def algorithm(rule: dict[str, Any], **more: Any) -> AlgorithmConfig:
    """A rule without KL penalty unless it has one of its own."""
    return AlgorithmConfig(**{"kl_coef": 0.0, **rule, **more})
