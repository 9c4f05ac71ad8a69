"""A training function as the trainer of a sweep: ``report(step, metrics)`` records an
evaluation.
"""

import random


def train(config, report):
    noise = random.Random(str(config))  # depends on the seed and on the settings
    rate = config["rate"] * (0.5 if config["schedule"] == "linear" else 1.0)
    for step in (1, 2, 3):
        report(
            step, {"eval/accuracy": 0.6 - (rate - 0.3) ** 2 + 0.02 * noise.random() + 0.01 * step}
        )
