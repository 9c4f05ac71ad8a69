from dataclasses import replace

import numpy as np
import pytest

from dashboards.pictures.precision import limits, precision
from dashboards.queries import Sweep
from dashboards.solved import Solved
from tests.dashboards.pictures.test_verdict import sweep_with

SCORES = {(0.0, 0.0): [0.50, 0.60, 0.70], (0.3, 0.0): [0.56, 0.64, 0.76]}


def solved(sweep: Sweep, training: float) -> Sweep:
    """100 problems with four completions; ``training`` moves every problem of a seed alike."""
    generator = np.random.default_rng(0)
    found = {}
    for row in sweep.trials.itertuples():
        shift = row.score + training * (generator.standard_normal() if row.alpha else 0)
        found[str(row.trial)] = Solved(generator.binomial(4, np.full(100, min(0.99, shift))) / 4, 1 / 400)
    return replace(sweep, solved=found)


def test_the_share_that_pairing_removed() -> None:
    # The seeds' means 0.53, 0.62 and 0.73 have the mean square 0.020067; the differences 0.06, 0.04 and 0.06 leave
    # 0.000067: (0.020067 - 0.000067) / 2 of seeds stands beside 0.000067 of noise.
    sweep = sweep_with(SCORES)
    assert limits(sweep).startswith("Pairing by seed removed 99% of the variance")
    picture = precision(sweep)
    assert picture.sentence.startswith("Pairing by seed removed 99% of the variance")
    assert picture.sentence.endswith("Which problems were solved is not on record.")
    (shares,) = picture.figures
    common = 0.01 / (0.01 + 0.0000667)
    assert [bar.x[0] for bar in shares.data] == pytest.approx([common, 1 - common], abs=1e-4)


def test_few_problems_limit_where_training_is_alike() -> None:
    sweep = solved(sweep_with(SCORES), training=0.0)
    assert limits(sweep).endswith("% is evaluation on 100 problems: more problems would narrow the interval most.")
    text = precision(sweep).sentence
    assert "Evaluation: 100 problems, so that eval/accuracy moves in steps of 0.0025." in text
    assert "more problems would narrow" in text
    assert "too coarse for a worthwhile 0.01" in text and text.endswith("problems would do.")


def test_seeds_limit_where_training_differs() -> None:
    sweep = solved(sweep_with(SCORES), training=0.12)
    assert "more seeds would narrow" in precision(sweep).sentence
    shares, widths = precision(sweep).figures
    assert sum(bar.x[0] for bar in shares.data) == pytest.approx(1)
    now, more, training, here, _ = widths.data
    assert list(here.x) == [3] and here.y[0] == pytest.approx(now.y[1])  # drawn from two seeds on
    assert all(one >= two >= three for one, two, three in zip(now.y, more.y, training.y, strict=True))
    # Variances of means fall with the seeds: a quarter as wide with 12 as with 3 is half.
    assert now.y[10] == pytest.approx(now.y[1] / 2)


def test_steps_as_large_as_what_is_worthwhile_are_too_coarse() -> None:
    sweep = sweep_with(SCORES)
    coarse = Solved(np.array([0.0, 1.0] * 50), 1 / 100)
    text = precision(replace(sweep, solved={"c0s0": coarse})).sentence
    assert "100 problems, so that eval/accuracy moves in steps of 0.010, too coarse for a worthwhile 0.01" in text


def test_one_seed_has_an_interval_of_evaluation_alone() -> None:
    sweep = solved(sweep_with({(0.0, 0.0): [0.5], (0.3, 0.0): [0.6]}), training=0.0)
    picture = precision(sweep)
    assert limits(sweep) == "" and picture.figures == ()
    assert picture.sentence.startswith("What pairing by seed removes is unknown")
    assert "#1 grpo α 0.3 differs from #0 grpo by" in picture.sentence
    assert "that of seeds comes on top" in picture.sentence


def test_nothing_is_drawn_before_there_is_a_score() -> None:
    sweep = sweep_with(SCORES)
    empty = replace(sweep, trials=sweep.trials.iloc[:0])
    assert precision(empty).figures == () and limits(empty) == ""
