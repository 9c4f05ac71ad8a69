"""Results of twelve trials with plausible numbers and whole curves."""

import math
import random

from dashboards.results import ALPHA, ETA, Curve, Objective, Results, Trial
from trainer.config.variants import variant_name

CONFIGURATIONS: list[tuple[str, float, float]] = [
    ("grpo", 0.0, 0.0),
    ("grpo", 0.3, 0.0),
    ("grpo", 0.0, 0.5),
    ("reinforce_plus_plus", 0.0, 0.0),
    ("reinforce_plus_plus", 0.12, 0.45),
    ("grpo", 0.9, 0.62),
]
SEEDS = (0, 1)
STEPS, EVERY = 60, 10
FAILED = (5, 1)  # configuration, seed


def demo_results(configurations: list[tuple[str, float, float]] | None = None) -> Results:
    """The results of ``demo``; of other configurations where they are given."""
    generator = random.Random(0)
    trials = []
    for number, (algorithm, alpha, eta) in enumerate(configurations or CONFIGURATIONS):
        for seed in SEEDS:
            failed = (number, seed) == FAILED
            curves = _curves(algorithm, alpha, eta, 25 if failed else STEPS, generator)
            trial = Trial(
                name=f"c{number:03d}-s{seed}",
                configuration=str(number),
                seed=str(seed),
                state="FAIL" if failed else "COMPLETE",
                score=math.nan if failed else curves["eval/accuracy"].end(3),
                parameters={"algorithm.advantage": algorithm, ALPHA: alpha, ETA: eta},
                algorithm=algorithm,
                rule=variant_name(algorithm, alpha, eta),
                reason="diverged at step 25: loss is nan </script><b>&" if failed else "",
                step=curves["eval/accuracy"].steps[-1],
                hours=0.5,
                curves=curves,
            )
            trials.append(trial)
    return Results("demo", Objective(), tuple(trials), ("algorithm.advantage", ALPHA, ETA), source="a test")


def true_score(algorithm: str, alpha: float, eta: float) -> float:
    """Where the accuracy ends without noise."""
    gain = 0.06 * math.exp(-(((alpha - 0.3) / 0.2) ** 2)) + 0.03 * (eta > 0) - 0.15 * (alpha > 0.8)
    return 0.74 + gain + 0.02 * (algorithm == "grpo")


def _curves(algorithm: str, alpha: float, eta: float, steps: int, generator: random.Random) -> dict[str, Curve]:
    top = true_score(algorithm, alpha, eta) + generator.gauss(0, 0.012)
    points: dict[str, dict[int, float]] = {}
    for step in range(steps + 1):
        share = 1 - math.exp(-step / 18)
        values = {}
        if step % EVERY == 0:
            values["eval/accuracy"] = 0.6 + (top - 0.6) * share + generator.gauss(0, 0.008)
        if step:
            values["policy/kl"] = 0.02 * share * (1 + alpha) * generator.uniform(0.8, 1.2)
            values["policy/entropy"] = 0.5 - 0.25 * share + generator.gauss(0, 0.01)
            values["policy/clip_fraction"] = 0.02 * generator.uniform(0.5, 1.5)
            values["rollout/completion_length"] = 80 + 15 * share + generator.gauss(0, 2)
            values["optim/grad_norm"] = 0.4 * generator.uniform(0.7, 1.4)
        for metric, value in values.items():
            points.setdefault(metric, {})[step] = value
    return {metric: Curve(tuple(steps), tuple(steps.values())) for metric, steps in points.items()}
