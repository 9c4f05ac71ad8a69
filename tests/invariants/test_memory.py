"""A rank that runs several trials: nothing of the earlier ones is left in its process."""

import pytest

from tests.invariants.ranks import run_ranks

pytestmark = pytest.mark.slow


def deepspeed(stage: int) -> dict[str, object]:
    return {"parallel.strategy": "deepspeed", "parallel.zero_stage": stage}


STRATEGIES = {
    "none": (1, {}),
    "ddp": (2, {"parallel.strategy": "ddp"}),
    **{f"zero-{stage}": (2, deepspeed(stage)) for stage in (0, 2, 3)},
}


def check_trials_end(strategy, model, overrides, folder, kept=()) -> None:
    """Run trials in one process per rank: each leaves as many bytes as the first, and only ``kept``."""
    ranks, parallel = STRATEGIES[strategy]
    job = {"model": str(model), "overrides": parallel | overrides}
    for rank, trials in enumerate(run_ranks("tests.invariants.memory_job", ranks, job, folder)):
        print(f"{strategy}, rank {rank}:", *(f"{trial['training']:,} -> {trial['left']:,}" for trial in trials))
        assert [trial["alive"] for trial in trials] == [list(kept)] * len(trials)
        assert all(trial["training"] > trial["left"] == trials[0]["left"] for trial in trials)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nothing_of_a_trial_is_left_in_its_ranks(strategy, tiny_policy, tmp_path):
    check_trials_end(strategy, tiny_policy, {}, tmp_path)
