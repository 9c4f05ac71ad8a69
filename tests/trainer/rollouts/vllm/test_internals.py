import pkgutil
from types import SimpleNamespace

import pytest
import torch

from trainer.rollouts.vllm.isolation import tolerate_neighbors

vllm = pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

CPU = "vllm.distributed.device_communicators.cpu_communicator:CpuCommunicator"
EXPERTS = "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method"
RELOAD = "vllm.model_executor.model_loader.reload"
TRANSFER = "vllm.distributed.weight_transfer"

# what vLLM documents nowhere -> the file that needs it
PRIVATE = {
    f"{CPU}._all_group_ranks_share_shm_group_name": "isolation.py",
    "vllm.v1.worker.gpu_worker:Worker.sleep": "isolation.py",
    "vllm.distributed:cleanup_dist_env_and_memory": "engine.py",
    "vllm.distributed.parallel_state:destroy_distributed_environment": "isolation.py",
    "vllm.distributed.parallel_state:get_tp_group": "engine.py",
    f"{RELOAD}:finalize_layerwise_reload": "receiver.py",
    f"{RELOAD}:initialize_layerwise_reload": "receiver.py",
    f"{RELOAD}.layerwise:get_layerwise_info": "receiver.py",
    f"{EXPERTS}:UnquantizedFusedMoEMethod._setup_kernel": "receiver.py",
    f"{TRANSFER}:WeightTransferEngineFactory._registry": "receiver.py",
    f"{TRANSFER}.base:WeightTransferEngine.parse_update_info": "receiver.py",
    f"{TRANSFER}:WeightTransferTrainerFactory": "nccl.py",
    f"{TRANSFER}.nccl_engine:NCCLTrainerInitInfo": "nccl.py",
}


@pytest.mark.parametrize("name", PRIVATE)
def test_what_vllm_keeps_private_and_sampling_needs_is_there(name):
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        pytest.fail(
            f"vLLM {vllm.__version__} has no {name}: give {PRIVATE[name]} of "
            "trainer/rollouts/vllm another way"
        )


class Asleep:
    """What `Worker.sleep` needs of a worker, on a device whose free memory changes."""

    def __init__(self):
        self.suspended = []
        self.sleep_mode_backend = SimpleNamespace(suspend=self.suspended.append)
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(enable_nccl_comm_suspend=False)
        )


@pytest.fixture
def free_memory(monkeypatch):
    """The free memory that vLLM reads, before and after it has fallen asleep."""
    free = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda: (free.pop(0), 100))
    return free


@pytest.fixture
def worker(monkeypatch):
    from vllm.v1.worker.gpu_worker import Worker

    monkeypatch.setattr(Worker, "sleep", Worker.sleep)  # restored afterwards
    return Worker


def test_a_neighbor_that_takes_memory_lets_vllm_sleep(monkeypatch, worker, free_memory):
    monkeypatch.setenv("LOPTUNE_GPU_FRACTION", "0.5")
    tolerate_neighbors(torch.device("cuda", 0))
    tolerate_neighbors(torch.device("cuda", 0))
    free_memory[:] = [50, 30]
    asleep = Asleep()
    worker.sleep(asleep, level=1)
    assert asleep.suspended == [1]


def test_alone_on_a_gpu_vllms_assertion_stays(monkeypatch, worker, free_memory):
    monkeypatch.delenv("LOPTUNE_GPU_FRACTION", raising=False)
    tolerate_neighbors(torch.device("cuda", 0))
    free_memory[:] = [50, 30]
    with pytest.raises(AssertionError, match="after sleeping"):
        worker.sleep(Asleep(), level=1)
