from dataclasses import replace

import numpy as np

from dashboards.pictures.precision import precision
from tests.dashboards.table import ALPHA, shown
from tests.dashboards.test_headline import sweep_with

SCORES = {(0.0, 0.0): [0.50, 0.60, 0.70], (0.3, 0.0): [0.56, 0.64, 0.76]}


def solved(sweep, training):
    """100 problems with four completions; ``training`` moves every problem of a seed alike."""
    generator = np.random.default_rng(0)
    trials = []
    for trial in sweep.trials:
        shift = trial.score + training * (
            generator.standard_normal() if trial.parameters[ALPHA] else 0
        )
        accuracy = generator.binomial(4, np.full(100, min(0.99, shift))) / 4
        trials.append(replace(trial, solved=tuple(accuracy)))
    return replace(sweep, trials=tuple(trials))


def test_few_problems_limit_where_training_is_alike():
    sweep = solved(sweep_with(SCORES), training=0.0)
    text = shown(precision(sweep)).sentence
    assert "86%" in text
    assert "25% narrower" in text and "twice the seeds 29%" in text  # 1 - sqrt(1 - 0.86 / 2)
    assert "0.01" in text and "2315" in text


def test_fresh_seeds_are_looked_at_where_there_are_any():
    searched = sweep_with({key: row[:1] for key, row in SCORES.items()})
    assert "One seed" in shown(precision(solved(searched, training=0.0))).sentence
    fresh = replace(solved(sweep_with(SCORES), training=0.0), adaptive=False)
    text = shown(precision(replace(solved(searched, training=0.0), fresh=fresh))).sentence
    assert "86%" in text


def test_seeds_limit_where_training_differs():
    sweep = solved(sweep_with(SCORES), training=0.12)
    text = shown(precision(sweep)).sentence
    assert "27%" in text and "7% narrower" in text  # 1 - sqrt(1 - 0.27 / 2)
