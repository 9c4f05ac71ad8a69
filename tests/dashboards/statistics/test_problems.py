import math

import numpy as np
import pytest

from dashboards.statistics.problems import evaluation_noise, paired_answers, split


def test_variances_by_hand():
    ours = np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    theirs = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    # Differences 1 0 0 and 1 1 1: means of seeds 1/3 and 1, of problems 1, 1/2 and 1/2. What is
    # left over is 1/3 -1/6 -1/6 and its negative; squares sum to 1/3 over 2 degrees of freedom.
    parts = split(ours, theirs)
    assert (parts.seeds, parts.problems) == (2, 3)
    assert parts.evaluation == pytest.approx(1 / 6 / 3)
    assert parts.training == pytest.approx(2 / 9 - 1 / 18)
    assert parts.evaluation_fraction == pytest.approx(1 / 4)
    # the variance between the seeds' means
    assert parts.training + parts.evaluation == pytest.approx(2 / 9)


def test_one_seed_has_the_noise_of_evaluation_alone():
    ours = np.array([[1.0, 0.5, 0.0, 1.0]])
    theirs = np.array([[0.0, 0.5, 0.0, 0.0]])
    parts = split(ours, theirs)
    assert parts.training is None and parts.evaluation_fraction is None
    assert parts.evaluation == pytest.approx(1 / 3 / 4)  # of 1 0 0 1


def test_a_variance_is_not_negative():
    # equal means of seeds and of problems
    parts = split(np.array([[1.0, 0.0], [0.0, 1.0]]), np.zeros((2, 2)))
    assert (parts.training, parts.evaluation, parts.evaluation_fraction) == (0, 0.5, 1)
    assert split(np.ones((2, 5)), np.ones((2, 5))).evaluation_fraction is None


def test_the_noise_of_evaluation_needs_records_of_every_seed():
    ours = np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    theirs = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    answers = {"a": dict(enumerate(ours)), "base": dict(enumerate(theirs))}
    noise = evaluation_noise(answers, "a", "base", [0, 1])
    assert noise == (pytest.approx(math.sqrt(1 / 18)), 2)  # as by hand above
    three = {name: {**rows, 2: rows[0]} for name, rows in answers.items()}
    assert evaluation_noise(three, "a", "base", [0, 1, 2]).dof == 4  # (3 - 1) * (3 - 1)
    for seeds in ([0], [0, 1, 2]):
        assert evaluation_noise(answers, "a", "base", seeds).dof == 0
    assert evaluation_noise({}, "a", "base", [0, 1]).dof == 0
    assert paired_answers(answers, "base", "base") is None
    other_set = {**answers, "base": {0: theirs[0], 1: theirs[1][:2]}}
    assert evaluation_noise(other_set, "a", "base", [0, 1]).dof == 0
