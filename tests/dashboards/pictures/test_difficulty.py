from dataclasses import replace

import pandas as pd
import pytest

from dashboards.labels import colours
from dashboards.pictures.difficulty import by_difficulty, difficulty_means
from dashboards.sweep import Sweep
from tests.dashboards.table import sweep_of


def sweep_with_parts() -> Sweep:
    """Two trials of plain GRPO, one of GRPO + AR, one that failed; puzzles of 2, 3 and 10 people."""
    values = {"0-s0": (0.9, 0.4, 0.2), "0-s1": (0.7, 0.6, 0.0), "1-s0": (0.8, 0.6, 0.3), "4-s1": (0.0, 0.0, 0.0)}
    latest = [
        (trial, f"eval/accuracy/{people}", value)
        for trial, of_trial in values.items()
        for people, value in zip(("2", "3", "10"), of_trial, strict=True)
    ]
    latest += [("0-s0", "eval/accuracy/test", 0.5), ("0-s0", "eval/accuracy/test.2", 0.5)]
    latest += [("0-s0", "tokens/positive_rose", 0.7)]
    return replace(sweep_of(), latest=pd.DataFrame(latest, columns=["trial", "metric", "value"]))


def test_accuracy_is_averaged_over_the_complete_trials_of_a_rule_and_keeps_out_sealed_problems() -> None:
    means = difficulty_means(sweep_with_parts()).set_index(["variant", "part"]).value
    assert means.to_dict() == {
        ("grpo", "2"): pytest.approx(0.8),
        ("grpo", "3"): pytest.approx(0.5),
        ("grpo", "10"): pytest.approx(0.1),
        ("grpo + AR", "2"): pytest.approx(0.8),
        ("grpo + AR", "3"): pytest.approx(0.6),
        ("grpo + AR", "10"): pytest.approx(0.3),
    }


def test_parts_are_in_the_order_of_their_numbers_in_the_colours_of_the_report() -> None:
    sweep = sweep_with_parts()
    picture = by_difficulty(sweep)
    assert picture is not None
    bars = {bar.name: bar for bar in picture.figures[0].data}
    assert list(bars["grpo"].x) == ["2", "3", "10"]
    assert list(bars["grpo"].y) == pytest.approx([0.8, 0.5, 0.1])
    assert bars["grpo"].marker.color == colours(sweep.trials.variant)["grpo"]
    assert "the hardest part is 10, grpo + AR 0.300, grpo 0.100; the easiest 2, 0.800" in picture.sentence


def test_one_part_alone_is_no_picture() -> None:
    assert by_difficulty(sweep_of()) is None
