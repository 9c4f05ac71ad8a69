import math

import numpy as np
import pytest

from dashboards.statistics.problems import evaluation_noise, paired_answers, split


def test_variances_by_hand():
    ours = np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    theirs = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    # Differences 1 0 0 and 1 1 1: means of seeds 1/3 and 1, of problems 1, 1/2 and 1/2. What is left over is
    # 1/3 -1/6 -1/6 and its negative; squares sum to 1/3 over 2 degrees of freedom.
    found = split(ours, theirs)
    assert (found.seeds, found.problems) == (2, 3)
    assert found.evaluation == pytest.approx(1 / 6 / 3)
    assert found.training == pytest.approx(2 / 9 - 1 / 18)
    assert found.evaluation_share == pytest.approx(1 / 4)
    # Together they are the variance between the seeds' means.
    assert found.error(2, 3) == pytest.approx(math.sqrt((2 / 9) / 2))
    assert found.error(4, 6) == pytest.approx(math.sqrt((1 / 6 + 1 / 36) / 4))


def test_one_seed_has_the_noise_of_evaluation_alone():
    ours = np.array([[1.0, 0.5, 0.0, 1.0]])
    theirs = np.array([[0.0, 0.5, 0.0, 0.0]])
    found = split(ours, theirs)
    assert found.training is None and found.evaluation_share is None
    assert found.evaluation == pytest.approx(1 / 3 / 4)  # of 1 0 0 1


def test_a_variance_is_not_negative():
    found = split(np.array([[1.0, 0.0], [0.0, 1.0]]), np.zeros((2, 2)))  # equal means of seeds and of problems
    assert (found.training, found.evaluation, found.evaluation_share) == (0, 0.5, 1)
    assert split(np.ones((2, 5)), np.ones((2, 5))).evaluation_share is None


def test_the_noise_of_evaluation_needs_records_of_every_seed():
    ours = np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    theirs = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    answers = {"a": dict(enumerate(ours)), "base": dict(enumerate(theirs))}
    found = evaluation_noise(answers, "a", "base", [0, 1])
    assert found == (pytest.approx(math.sqrt(1 / 18)), 2)  # as by hand above
    three = {name: {**rows, 2: rows[0]} for name, rows in answers.items()}
    assert evaluation_noise(three, "a", "base", [0, 1, 2]).freedom == 4  # (3 - 1) * (3 - 1)
    for seeds in ([0], [0, 1, 2]):
        assert evaluation_noise(answers, "a", "base", seeds).freedom == 0
    assert evaluation_noise({}, "a", "base", [0, 1]).freedom == 0
    assert paired_answers(answers, "base", "base") is None
    other_set = {**answers, "base": {0: theirs[0], 1: theirs[1][:2]}}
    assert evaluation_noise(other_set, "a", "base", [0, 1]).freedom == 0
