"""Every update rule, once: what the invariants are tested on."""

import sys
from typing import Any

from tests.paths import ROOT
from trainer.config.algorithm import AlgorithmConfig
from trainer.rules.advantages import ADVANTAGES as ADVANTAGE_RULES
from trainer.rules.losses import LOSSES as LOSS_RULES

sys.path.append(str(ROOT / "examples" / "rules"))  # rules that stand beside the package

ADVANTAGES = {name: {"advantage": name} for name in ADVANTAGE_RULES}
LOSSES = {name: {"loss": name} for name in LOSS_RULES}
RULES: dict[str, dict[str, Any]] = {
    **ADVANTAGES,
    **LOSSES,
    # Of a smaller share of Clip-Cov each rank draws some.
    "clip_cov": {"loss": {"name": "covariance:ClipCov", "share": 1.0}},
    "kl_cov": {"loss": {"name": "covariance:KlCov", "share": 0.2}},
    "lp_reg": {"loss": {"name": "lp_reg:LpReg", "share": 0.5}},
    "rgra": {"loss": "rgra:Rgra"},
    "baseline": {"advantage": "reinforce_baseline:ReinforceBaseline"},
    "stare": {
        "loss": {"name": "stare:Stare", "share": 0.5, "attenuate": 0.5, "target_entropy": 9.0}
    },
    "stapo": {"loss": {"name": "stapo:Stapo", "probability": 0.02}},
    "entropy bonus": {"entropy_coef": 0.1},
    "luspo": {"loss": "gspo", "loss_aggregation": "seq_mean_token_sum"},
    "dppo near the old policy": {"loss": "dppo_tv", "log_ratio_coef": 0.1},
    "dr_grpo in full": {"advantage": "dr_grpo", "loss_aggregation": "constant"},
    "high entropy": {"token_filter": "high_entropy"},
    "no truncated": {"mask_truncated": True},
    "kl": {"kl_coef": 0.1},
    "icepop": {"engine_correction": {"rule": "mask", "floor": 0.5}},
    "sequence truncation": {"engine_correction": {"level": "sequence"}},
    "geometric mask": {
        "engine_correction": {"cap": 9.0, "level": "geometric_mean", "rule": "mask"}
    },
}


def algorithm(rule: dict[str, Any], **more: Any) -> AlgorithmConfig:
    """A rule without KL penalty unless it has one of its own."""
    return AlgorithmConfig(**{"kl_coef": 0.0, **rule, **more})
