import pytest

from dashboards.statistics.problems import ProblemSplit
from dashboards.statistics.problems_or_seeds import problems_or_seeds


def test_the_same_narrower_interval_is_priced_by_problems_and_by_seeds():
    split = ProblemSplit(seeds=4, problems=50, training=0.25, evaluation=0.75)
    found = problems_or_seeds([split], training_s=90.0, evaluation_s=10.0)
    # twice the problems leave 0.25 + 0.375 of the variance, as 1.6 times the seeds do
    assert found.evaluation_fraction == 0.75
    assert found.narrower == pytest.approx(1 - 0.625**0.5)
    assert found.cost_of_problems == pytest.approx(0.1)
    assert found.cost_of_seeds == pytest.approx(0.6)
    assert found.cheaper == "problems"


def test_seeds_are_cheaper_where_evaluation_is_most_of_the_time():
    split = ProblemSplit(seeds=4, problems=50, training=0.75, evaluation=0.25)
    assert problems_or_seeds([split], training_s=10.0, evaluation_s=90.0).cheaper == "seeds"


@pytest.mark.parametrize(
    ("training", "seconds"), [(None, (1.0, 1.0)), (0.0, (1.0, 1.0)), (0.1, (0.0, 1.0))]
)
def test_nothing_is_said_without_variance_or_with_unknown_times(training, seconds):
    split = ProblemSplit(seeds=4, problems=50, training=training, evaluation=0.0)
    assert problems_or_seeds([split], *seconds) is None
