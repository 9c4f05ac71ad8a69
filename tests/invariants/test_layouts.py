"""A run goes on with another number of ranks, another ZeRO stage or in one process: its weights and
optimizer are those of the checkpoint, to the last bit.
"""

import shutil

import pytest
import torch

from tests.invariants.ranks import run_ranks
from tests.invariants.train_job import run_case, small_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

JOB = "tests.invariants.layout_job"
ALONE: dict[str, object] = {}
DDP = {"parallel.strategy": "ddp"}
LOW = {"model.dtype": "bfloat16"}
LORA = {"model.lora.r": 4}


def zero(stage):
    return {"parallel.strategy": "deepspeed", "parallel.zero_stage": stage}


# how two steps are trained -> (ranks, overrides)
WRITTEN = {
    "alone": (1, ALONE),
    "ddp": (2, DDP),
    "zero-2": (2, zero(2)),
    "zero-3": (2, zero(3)),
    "zero-3-low": (2, zero(3) | LOW),
    "zero-2-lora": (2, zero(2) | LORA),
}
# what reads it -> (the one that wrote, ranks, overrides)
READ = {
    "ddp to one process": ("ddp", 1, ALONE),
    "one process to ddp": ("alone", 2, DDP),
    "one process to zero-3": ("alone", 2, zero(3)),
    "zero-2 to ddp": ("zero-2", 2, DDP),
    "zero-3 to zero-1 on one": ("zero-3", 1, zero(1)),
    "zero-3 to zero-2": ("zero-3", 2, zero(2)),
    "zero-3 to zero-1 in bfloat16": ("zero-3-low", 1, zero(1) | LOW),
    "zero-2 to one process with an adapter": ("zero-2-lora", 1, LORA),
    "the same": ("zero-3", 2, zero(3)),
}


def run_all(cases, model, folder):
    """Run cases on the number of ranks that each asks for; return what rank 0 has of each."""
    results = {}
    for ranks in (1, 2):
        of_ranks = {name: case for name, (its, case) in cases.items() if its == ranks}
        job = {"model": str(model), "runs": str(folder), "cases": of_ranks}
        results |= run_ranks(JOB, ranks, job, folder / f"{ranks}-ranks")[0]
    return results


def state(folder, ranks, name):
    return torch.load(folder / f"{ranks}-ranks" / f"{name}.pt")


@pytest.fixture(scope="module")
def written(tiny_policy, tmp_path_factory):
    """Runs of two steps in every layout: their folder."""
    folder = tmp_path_factory.mktemp("written")
    cases = {
        name: (ranks, {"overrides": overrides, "until": 2})
        for name, (ranks, overrides) in WRITTEN.items()
    }
    run_all(cases, tiny_policy, folder)
    return folder


@pytest.fixture(scope="module")
def read(tiny_policy, written, tmp_path_factory):
    """Each of these runs resumed in another layout, for two more steps: folder and results."""
    folder = tmp_path_factory.mktemp("read")
    cases = {}
    for name, (writer, ranks, overrides) in READ.items():
        shutil.copytree(written / writer, folder / name)
        cases[name] = (ranks, {"overrides": overrides, "until": 4})
    return folder, run_all(cases, tiny_policy, folder)


@pytest.fixture(scope="module")
def never_stopped(tiny_policy, tmp_path_factory):
    """The metrics of the whole run in one process."""
    return run_case(small_config(tiny_policy, {}), tmp_path_factory.mktemp("whole"))["metrics"]


@pytest.mark.parametrize("name", READ)
def test_another_layout_reads_the_same_state(written, read, name):
    folder, results = read
    writer, ranks, _ = READ[name]
    before = state(written, WRITTEN[writer][0], f"{writer}-written")
    after = state(folder, ranks, f"{name}-read")
    assert results[name]["resumed_at"] == 2 and results[name]["step"] == 4
    assert before["step"] > 0
    assert before.keys() == after.keys()
    different = [key for key in before if not torch.equal(before[key], after[key])]
    assert different == []
    later = state(folder, ranks, f"{name}-written")
    assert all(bool(tensor.isfinite().all()) for tensor in later.values())
    assert later["step"] > before["step"]


@pytest.mark.parametrize(
    "name", [name for name in READ if "adapter" not in name and "bfloat16" not in name]
)
def test_another_layout_goes_on_with_the_same_problems(read, never_stopped, name):
    _, results = read
    metrics = results[name]["metrics"]
    assert metrics.keys() == {"3", "4"}
    for step in ("3", "4"):
        expected = never_stopped[int(step)]
        for metric in (
            "rollout/reward",
            "rollout/completion_length",
            "optim/grad_norm",
            "policy/loss",
        ):
            assert metrics[step][metric] == pytest.approx(expected[metric], rel=5e-3, abs=1e-5), (
                step,
                metric,
            )
