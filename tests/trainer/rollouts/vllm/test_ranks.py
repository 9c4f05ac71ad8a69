"""vLLM beside two gloo ranks that train together."""

from pathlib import Path

import pytest

from tests.invariants.ranks import run_ranks
from tests.trainer.rollouts.vllm.models import AGREEMENT

pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

DDP = {"parallel.strategy": "ddp"}
ZERO_3 = {"parallel.strategy": "deepspeed", "parallel.zero_stage": 3}


@pytest.fixture
def _killed_run():
    """Shared memory that vLLM's ranks leave behind where they are killed."""
    left = [Path(f"/dev/shm/-tp:0-[0-1]-cpushm_{rank}") for rank in range(2)]
    for file in left:
        file.touch()
    yield
    for file in left:
        file.unlink(missing_ok=True)


@pytest.mark.usefixtures("_killed_run")
@pytest.mark.parametrize(
    ("overrides", "tied"),
    [(DDP, True), (DDP | {"rollout.vllm.tensor_parallel": 2}, False), (ZERO_3, True)],
    ids=["ddp", "tensor-parallel", "zero-3"],
)
def test_agrees_with_the_policy_after_each_of_five_optimizer_steps(overrides, tied, tmp_path):
    results = run_ranks(
        "tests.trainer.rollouts.vllm.rank_job",
        2,
        {"overrides": overrides, "tied": tied},
        tmp_path,
        timeout=280,
        cold=True,  # vLLM starts processes of its own
    )
    for rank, result in enumerate(results):
        print(
            f"rank {rank}: largest differences {[f'{d:.1e}' for d in result['differences']]} nats"
        )
        assert len(result["differences"]) == 6 and max(result["differences"]) < AGREEMENT
        assert min(result["movements"]) > 0.05, "every step must move the weights visibly"
        assert result["alive"] == 2, "the ranks stay connected after the engine is gone"
