"""A rank that runs several trials: nothing of the earlier ones is left in its process."""

import pytest

from tests.invariants.ranks import run_ranks

pytestmark = pytest.mark.slow


def deepspeed(stage):
    return {"parallel.strategy": "deepspeed", "parallel.zero_stage": stage}


STRATEGIES = {
    "none": {},
    "ddp": {"parallel.strategy": "ddp"},
    **{f"zero-{stage}": deepspeed(stage) for stage in (2, 3)},
}


def run_trials(strategies, model, overrides, folder):
    """What every rank reports of its trials: strategies one after another in one process
    per rank.
    """
    cases = {name: STRATEGIES[name] | overrides for name in strategies}
    ranks = 1 if strategies == ["none"] else 2
    return run_ranks(
        "tests.invariants.memory_job", ranks, {"model": str(model), "cases": cases}, folder
    )


def check_trials_end(strategy, ranks, kept=()):
    """Every trial has left as many bytes as the strategy's first, and only ``kept``."""
    for rank, trials in enumerate(of_rank[strategy] for of_rank in ranks):
        print(
            f"{strategy}, rank {rank}:",
            *(f"{trial['training']:,} -> {trial['left']:,}" for trial in trials),
        )
        assert [trial["alive"] for trial in trials] == [list(kept)] * len(trials)
        assert all(trial["training"] > trial["left"] == trials[0]["left"] for trial in trials)


@pytest.fixture(scope="module")
def together(tiny_policy, tmp_path_factory):
    return run_trials(
        [name for name in STRATEGIES if name != "none"],
        tiny_policy,
        {},
        tmp_path_factory.mktemp("two"),
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_of_a_trial_is_left_in_its_ranks(strategy, together, tiny_policy, tmp_path):
    check_trials_end(
        strategy,
        run_trials(["none"], tiny_policy, {}, tmp_path) if strategy == "none" else together,
    )
