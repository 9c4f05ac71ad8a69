import json

import pytest

from tests.refusals import refused
from tests.tables import table
from trainer.problems.sampler import ProblemSampler, training_steps
from trainer.types import Problem


def some_problems(count):
    return [Problem(str(i), f"p{i}", "", "", "") for i in range(count)]


def test_sampler_gives_every_problem_once_per_epoch_in_another_order():
    sampler = ProblemSampler(some_problems(10), seed=0, shuffle=True)
    epochs = [[p.problem_id for p in sampler.next(10)] for _ in range(3)]
    assert all(sorted(epoch, key=int) == [str(i) for i in range(10)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    seeds = [ProblemSampler(some_problems(10), seed, True).next(10) for seed in (0, 1)]
    assert [problem.problem_id for problem in seeds[0]] == epochs[0] and seeds[0] != seeds[1]


def test_sampler_crosses_epochs_and_may_take_more_than_there_are():
    sampler = ProblemSampler(some_problems(4), seed=0, shuffle=False)
    assert [p.problem_id for p in sampler.next(3)] == ["0", "1", "2"]
    assert [p.problem_id for p in sampler.next(3)] == ["3", "0", "1"]
    assert [p.problem_id for p in sampler.next(9)] == ["2", "3", "0", "1", "2", "3", "0", "1", "2"]


@pytest.mark.parametrize("drop_last", [False, True])
def test_sampler_resumes_where_it_was(drop_last):
    sampler, resumed = (
        ProblemSampler(some_problems(10), seed=5, shuffle=True, drop_last=drop_last)
        for _ in range(2)
    )
    for _ in range(4):
        resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
        assert sampler.next(7) == resumed.next(7)


def test_sampler_refuses_another_dataset_none_and_one_that_fills_no_step():
    with refused("step-not-filled", key="data.drop_last"):
        training_steps(1, 3, 4, drop_last=True)
    sampler = ProblemSampler(some_problems(10), seed=0, shuffle=True)
    with refused("problems-changed", key="data.train"):
        ProblemSampler(some_problems(9), seed=0, shuffle=True).load_state_dict(sampler.state_dict())
    with refused("no-problems", ValueError):
        ProblemSampler([], seed=0, shuffle=True)


def test_drop_last_begins_the_next_epoch_before_a_step_of_both():
    sampler = ProblemSampler(some_problems(10), seed=0, shuffle=True, drop_last=True)
    steps = [[problem.problem_id for problem in sampler.next(4)] for _ in range(6)]
    for first, second in zip(steps[::2], steps[1::2], strict=True):
        assert len({*first, *second}) == 8
    assert len({tuple(first) for first in steps[::2]}) == 3


@pytest.mark.parametrize(
    ("epochs", "problems", "prompts", "drop_last", "steps"), table("epoch_steps")
)
def test_steps_of_epochs(epochs, problems, prompts, drop_last, steps):
    assert training_steps(epochs, problems, prompts, drop_last) == steps
