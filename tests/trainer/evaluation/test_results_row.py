import pytest

from tests.trainer.evaluation.test_evaluate import rollout
from trainer.config.schema import EvaluationConfig
from trainer.evaluation.results_row import print_results_row, results_row

EVALUATION = EvaluationConfig(
    sets={
        "math": "m.parquet",
        "aime": {"source": "a.parquet", "temperature": 1.0, "completions_per_problem": 2, "pass_at_k": 2},
        "amc": {"source": "b.parquet", "temperature": 1.0, "completions_per_problem": 2},
    }
)


def answered(math, aime, amc):
    """Rollouts of every set from the outcomes of each problem."""
    given = {"math": math, "aime": aime, "amc": amc}
    return {
        name: [rollout(group, bool(right)) for group, outcomes in enumerate(problems) for right in outcomes]
        for name, problems in given.items()
    }


# Two problems of each set; 1 is a right completion.
FIRST = answered([[1], [0]], [[1, 0], [0, 0]], [[1, 1], [1, 0]])
SECOND = answered([[1], [1]], [[0, 1], [0, 0]], [[1, 1], [0, 0]])


def test_a_row_by_hand():
    cells = results_row([FIRST, SECOND], EVALUATION)
    assert [(cell.set, cell.measure) for cell in cells] == [
        ("math", "greedy"),
        ("aime", "avg@2"),
        ("aime", "pass@2"),
        ("amc", "avg@2"),
        ("", "mean"),
    ]
    assert [cell.value for cell in cells[:4]] == pytest.approx([(0.5 + 1) / 2, 0.25, 0.5, (0.75 + 0.5) / 2])
    assert cells[4].value == pytest.approx((0.75 + 0.25 + 0.5 + 0.625) / 4)
    assert all(cell.low <= cell.value <= cell.high for cell in cells)


def test_pass_at_k_is_that_of_each_checkpoint():
    # One checkpoint solves the problem always, the other never: together four completions, two of them right.
    always, never = answered([[1]], [[1, 1]], [[1, 1]]), answered([[1]], [[0, 0]], [[1, 1]])
    cells = {(cell.set, cell.measure): cell for cell in results_row([always, never], EVALUATION)}
    assert cells["aime", "pass@2"].value == 0.5  # not 1 - C(2, 2) / C(4, 2)


def test_the_interval_of_the_mean_draws_problems_within_their_set():
    # A set of one problem never varies; of the mean's variance a half of a half is the other set's.
    sets = EvaluationConfig(sets={"a": "a.parquet", "b": "b.parquet"})
    many = [rollout(group, group % 2 == 0) for group in range(400)]
    *_, mean = results_row([{"a": many, "b": [rollout(0, True)]}], sets)
    assert mean.value == 0.75
    half = 1.96 * (0.25 / 400) ** 0.5 / 2
    assert (mean.low, mean.high) == pytest.approx((0.75 - half, 0.75 + half), abs=0.005)


def test_the_printed_row_is_in_percent(capsys):
    print_results_row(results_row([FIRST, SECOND], EVALUATION), [330, 350])
    title, names, measures, values, _ = capsys.readouterr().out.strip().splitlines()
    assert title == "mean of 2 checkpoints, steps 330, 350 [%, with 95 % intervals]:"
    assert names.split()[:4] == ["math", "aime", "aime", "amc"]
    assert "pass@2" in measures
    assert values.split() == ["75.00", "25.00", "50.00", "62.50", "53.12"]
