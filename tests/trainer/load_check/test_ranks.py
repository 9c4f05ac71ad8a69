"""The check on two ranks: all pass, or all stop for the same reason."""

import pytest

from tests.invariants.ranks import run_ranks
from tests.trainer.load_check.runs import saved

JOB = "tests.trainer.load_check.rank_job"
DDP = {"parallel.strategy": "ddp"}
CASES = {
    "ddp": {"settings": DDP},
    "ddp with an adapter": {"settings": DDP | {"model.lora.r": 2}},
    "stale": {"settings": DDP, "stale_rank": 1},
    "zero 3": {"settings": {"parallel.strategy": "deepspeed", "parallel.zero_stage": 3}},
    "zero 2 with an adapter": {
        "settings": {"parallel.strategy": "deepspeed", "parallel.zero_stage": 2, "model.lora.r": 2}
    },
}


@pytest.mark.slow
def test_ranks_agree_on_the_verdict(tmp_path):
    job = {"model": str(saved(tmp_path / "model")), "cases": CASES}
    first, second = run_ranks(JOB, 2, job, tmp_path / "ranks")
    assert first == second
    assert {name for name, error in first.items() if error} == {"stale"}
    assert "the engine's weights, positions or temperature" in first["stale"]
