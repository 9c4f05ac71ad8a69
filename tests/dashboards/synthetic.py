"""A sweep of twelve trials with plausible numbers, written to MLflow the way a real one is."""

import math
import random
import time
from pathlib import Path
from typing import Any

from sweep.tracking.outcomes import TrialOutcome
from sweep.tracking.parent_run import open_parent_run
from tests.trainer.tracking.store import sqlite_store

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
FAILED = ("5", 1)  # configuration, seed


def true_score(algorithm: str, alpha: float, eta: float) -> float:
    """Where the accuracy ends without noise."""
    gain = 0.06 * math.exp(-(((alpha - 0.3) / 0.2) ** 2)) + 0.03 * (eta > 0) - 0.15 * (alpha > 0.8)
    return 0.74 + gain + 0.02 * (algorithm == "grpo")


def write_sweep(folder: Path, name: str = "demo", configurations: list[tuple[str, float, float]] | None = None) -> str:
    """Record the sweep in a fresh SQLite store and return its URI."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    uri = sqlite_store(folder)
    objective = {"objective": "max eval/accuracy", "objective.window": 3}
    parent = open_parent_run(uri, name, name, {}, objective)
    generator = random.Random(0)
    outcomes, metrics = [], {}
    for number, (algorithm, alpha, eta) in enumerate(configurations or CONFIGURATIONS):
        for seed in SEEDS:
            trial = f"{number:03d}-s{seed}"
            failed = (str(number), seed) == FAILED
            curves = _curves(algorithm, alpha, eta, 25 if failed else STEPS, generator)
            evaluations = [value for _, metric, value in curves if metric == "eval/accuracy"]
            metrics[f"{name}/{trial}"] = curves
            tags = {"sweep": name, "trial": trial, "configuration": str(number), "seed": str(seed)}
            tags = {f"loptune.{key}": value for key, value in tags.items()}
            outcomes.append(
                TrialOutcome(
                    key=f"{name}/{trial}",
                    run_name=trial,
                    state="FAIL" if failed else "COMPLETE",
                    reason="diverged at step 25: loss is nan </script><b>&" if failed else "",
                    score=None if failed else sum(evaluations[-3:]) / 3,
                    tags=tags,
                    params=_params(algorithm, alpha, eta, seed),
                )
            )
    parent.reconcile(outcomes)
    client = MlflowClient(uri)
    now = round(time.time() * 1000)
    for run in client.search_runs([client.get_experiment_by_name(name).experiment_id]):
        batch = [
            Metric(metric, value, now + step, step)
            for step, metric, value in metrics.get(run.data.tags.get("loptune.run"), [])
        ]
        for start in range(0, len(batch), 1000):
            client.log_batch(run.info.run_id, metrics=batch[start : start + 1000])
    parent.finish("FINISHED")
    return uri


def _params(algorithm: str, alpha: float, eta: float, seed: int) -> dict[str, Any]:
    return {
        "algorithm.advantage": algorithm,
        "algorithm.ar_alpha": alpha,
        "algorithm.lopti_eta": eta,
        "optim.lr": 3e-4,
        "seed": seed,
    }


def _curves(
    algorithm: str, alpha: float, eta: float, steps: int, generator: random.Random
) -> list[tuple[int, str, float]]:
    top = true_score(algorithm, alpha, eta) + generator.gauss(0, 0.012)
    points = []
    for step in range(steps + 1):
        share = 1 - math.exp(-step / 18)
        if step % EVERY == 0:
            points.append((step, "eval/accuracy", 0.6 + (top - 0.6) * share + generator.gauss(0, 0.008)))
        if step:
            points += [
                (step, "policy/kl", 0.02 * share * (1 + alpha) * generator.uniform(0.8, 1.2)),
                (step, "policy/entropy", 0.5 - 0.25 * share + generator.gauss(0, 0.01)),
                (step, "policy/clip_fraction", 0.02 * generator.uniform(0.5, 1.5)),
                (step, "rollout/completion_length", 80 + 15 * share + generator.gauss(0, 2)),
                (step, "optim/grad_norm", 0.4 * generator.uniform(0.7, 1.4)),
            ]
    return points
