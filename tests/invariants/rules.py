"""Every update rule, once: what the invariants are tested on."""

from typing import Any

from trainer.config.algorithm import AlgorithmConfig
from trainer.rules.advantages import ADVANTAGES as ADVANTAGE_RULES
from trainer.rules.losses import LOSSES as LOSS_RULES

ADVANTAGES = {name: {"advantage": name} for name in ADVANTAGE_RULES}
LOSSES = {name: {"loss": name} for name in LOSS_RULES}
RULES: dict[str, dict[str, Any]] = {
    **ADVANTAGES,
    **LOSSES,
    "clip_cov": {"loss": {"name": "clip_cov", "share": 1.0}},  # of fewer, a random one is chosen on each rank
    "kl_cov": {"loss": {"name": "kl_cov", "share": 0.2}},
    "lp_reg": {"loss": {"name": "lp_reg", "share": 0.5}},
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


def algorithm(rule: dict[str, Any], **more: Any) -> AlgorithmConfig:
    """A rule without KL penalty unless it has one of its own."""
    return AlgorithmConfig(**{"kl_coef": 0.0, **rule, **more})
