import pkgutil

import pytest

vllm = pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

CPU = "vllm.distributed.device_communicators.cpu_communicator:CpuCommunicator"
RELOAD = "vllm.model_executor.model_loader.reload"
TRANSFER = "vllm.distributed.weight_transfer"

# what vLLM documents nowhere -> the file that needs it
PRIVATE = {
    f"{CPU}._all_group_ranks_share_shm_group_name": "containment.py",
    "vllm.distributed:cleanup_dist_env_and_memory": "engine.py",
    "vllm.distributed.parallel_state:get_tp_group": "engine.py",
    f"{RELOAD}:finalize_layerwise_reload": "receiver.py",
    f"{RELOAD}:initialize_layerwise_reload": "receiver.py",
    f"{RELOAD}.layerwise:get_layerwise_info": "receiver.py",
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
