import re
from dataclasses import replace

import pytest

from dashboards.pictures.mechanism import band_means, probability_bands
from tests.dashboards.table import results_of, shown


def sweep_with_bands():
    """Trials of plain GRPO (0-s0, 0-s1) and of GRPO + AR (1-s0) with two bands."""
    values = {
        "0-s0": {
            "token_fraction": (0.02, 0.98),
            "gradient_fraction": (0.6, 0.4),
            "advantage_fraction": (0.02, 0.98),
        },
        "0-s1": {
            "token_fraction": (0.04, 0.96),
            "gradient_fraction": (0.4, 0.6),
            "advantage_fraction": (0.04, 0.96),
        },
        "1-s0": {
            "token_fraction": (0.03, 0.97),
            "gradient_fraction": (0.2, 0.8),
            "advantage_fraction": (0.01, 0.99),
        },
    }
    latest = {
        trial: {
            f"tokens/{quantity}/{band}": value
            for quantity, both in quantities.items()
            for band, value in zip(("0.00-0.25", "0.99-1.00"), both, strict=True)
        }
        for trial, quantities in values.items()
    }
    latest["0-s0"]["tokens/positive_rose"] = 0.7
    sweep = results_of()
    return replace(
        sweep,
        trials=tuple(replace(trial, latest=latest.get(trial.name, {})) for trial in sweep.trials),
    )


def test_bands_are_averaged_over_the_trials_of_an_update_rule():
    means = band_means(sweep_with_bands()).set_index(["rule", "quantity", "band"]).value
    assert means["grpo", "gradient_fraction", "0.00-0.25"] == pytest.approx(0.5)
    assert means["grpo + AR", "gradient_fraction", "0.99-1.00"] == pytest.approx(0.8)
    assert len(means) == 12  # other tokens/* are none of it


def test_bands_say_what_tokens_of_low_probability_send():
    picture = shown(probability_bands(sweep_with_bands()))
    assert len(picture.figures) == 2
    # token fraction: grpo 0.03, grpo + AR 0.03
    percentages = re.findall(r"[\d.]+%", picture.sentence)
    # fraction of all tokens, of the gradient by rule, of the advantage from least to most
    assert percentages == ["3.0%", "50%", "20%", "1.0%", "3.0%"]


def test_bands_without_the_fraction_of_tokens_are_not_drawn():
    """Runs of a version that named it otherwise: the sentence would give nan%."""
    sweep = sweep_with_bands()
    trials = []
    for trial in sweep.trials:
        latest = {name: value for name, value in trial.latest.items() if "token_fr" not in name}
        trials.append(replace(trial, latest=latest))
    assert probability_bands(replace(sweep, trials=tuple(trials))) is None
