"""A sweep of ten trials as tables, without MLflow."""

import math

import pandas as pd

from dashboards.sweep import Objective, Sweep
from trainer.config.variants import variant_name

SCORES = [  # configuration, algorithm, alpha, eta, scores of seeds 0 and 1
    ("0", "grpo", 0.0, 0.0, 0.50, 0.60),
    ("1", "grpo", 0.3, 0.0, 0.70, 0.80),
    ("2", "grpo", 0.0, 0.5, 0.55, 0.55),
    ("3", "rpp", 0.0, 0.0, 0.40, 0.50),
    ("4", "rpp", 0.3, 0.5, 0.45, math.nan),
]


def sweep_of(mode: str = "max") -> Sweep:
    """Five configurations, two seeds; the last trial failed."""
    rows, histories = [], []
    for configuration, algorithm, alpha, eta, *scores in SCORES:
        for seed, score in enumerate(scores):
            trial = f"{configuration}-s{seed}"
            failed = math.isnan(score)
            ends = 0.1 if failed else score
            start, variant = pd.Timestamp(len(rows), unit="s", tz="UTC"), variant_name(algorithm, alpha, eta)
            searched = {"algorithm.advantage": algorithm, "algorithm.ar_alpha": alpha, "algorithm.lopti_eta": eta}
            rows.append(
                {
                    **{"trial": trial, "configuration": configuration, "seed": str(seed), "test": math.nan},
                    "state": "FAIL" if failed else "COMPLETE",
                    "reason": "diverged <b>" if failed else "",
                    **{"score": score, "best": ends, "step": 20, "start": start, "duration_s": 90.0},
                    **{"algorithm": algorithm, "alpha": alpha, "eta": eta, "variant": variant, "arm": ""},
                    **{"run_id": trial, **searched},
                }
            )
            histories += [(trial, "eval/accuracy", 0, 0.3), (trial, "eval/accuracy", 20, ends)]
            histories += [(trial, "policy/kl", 10, 0.02), (trial, "policy/kl", 20, 0.04)]
    return Sweep(
        "demo",
        "sqlite://",
        "FINISHED",
        Objective("eval/accuracy", "min" if mode == "min" else "max", 1),
        pd.DataFrame(rows),
        pd.DataFrame(histories, columns=["trial", "metric", "step", "value"]),
        ("algorithm.advantage", "algorithm.ar_alpha", "algorithm.lopti_eta"),
    )
