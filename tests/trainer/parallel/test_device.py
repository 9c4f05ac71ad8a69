import os

import psutil
import pytest
import torch

from loptune.errors import MissingError
from tests.refusals import refused
from trainer.config.model import ModelConfig
from trainer.parallel import device, gpus
from trainer.parallel.device import compute_dtype, describe_device, local_device, memory_in_use
from trainer.planning.memory import Device

CPU = torch.device("cpu")
GPU = torch.device("cuda")


@pytest.fixture
def machine(monkeypatch):
    """Pretends that this machine has GPUs, and that torch sees some of them."""

    def pretend(listed, seen, local_rank=0):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name in ("DS_ACCELERATOR", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            monkeypatch.setenv(name, "")  # so that what is set is taken back
            monkeypatch.delenv(name)
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        lines = {"-L": [f"GPU {n}: NVIDIA H100 (UUID: GPU-{n})" for n in range(listed)]}
        monkeypatch.setattr(
            gpus, "_nvidia_smi", lambda *arguments: lines.get(arguments[0], ["570.86.10"])
        )
        monkeypatch.setattr(torch.cuda, "is_available", lambda: seen > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)

    return pretend


def test_without_a_gpu_auto_is_the_cpu(machine):
    machine(0, 0)
    assert local_device("auto") == CPU
    assert os.environ["DS_ACCELERATOR"] == "cpu"


def test_a_configuration_for_gpus_stops_where_there_is_none(machine):
    machine(0, 0)
    with refused("no-gpu", MissingError) as caught:
        local_device("cuda")
    assert caught.value.exit_code == 3
    assert "parallel.device=cpu" in caught.value.hint
    assert local_device("cpu") == CPU


@pytest.mark.parametrize("wanted", ["auto", "cuda"])
def test_a_gpu_that_torch_cannot_use_is_an_error_with_the_reason(machine, monkeypatch, wanted):
    machine(4, 0)

    def init():
        raise RuntimeError(
            "The NVIDIA driver on your system is too old (found version 12080).\nMore."
        )

    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.version, "cuda", None)
    with refused("gpu-unusable", MissingError) as caught:
        local_device(wanted)
    assert caught.value.what.endswith(
        "The NVIDIA driver on your system is too old (found version 12080)."
    )
    assert "driver 570.86.10" in caught.value.where
    assert "make install-gpu" in caught.value.hint
    assert local_device("cpu") == CPU


def test_a_torch_for_gpus_that_cannot_use_one_sends_to_the_drivers_page(machine, monkeypatch):
    machine(1, 0)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    with refused("gpu-unusable", MissingError) as caught:
        local_device()
    assert "docs/guides/gpu.md" in caught.value.hint and "make" not in caught.value.hint
    assert "580" in caught.value.hint  # the oldest driver for CUDA 13


def test_the_gpus_that_a_trial_was_given_count_without_nvidia_smi(machine, monkeypatch):
    machine(0, 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setattr("trainer.parallel.device.driver_version", lambda: "580.10")
    with refused("gpu-unusable", MissingError):
        local_device("auto")
    monkeypatch.setattr("trainer.parallel.device.driver_version", lambda: None)
    with refused("no-driver", MissingError) as caught:
        local_device("auto")
    assert caught.value.where == "CUDA_VISIBLE_DEVICES=2,3" and "unset" in caught.value.hint
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert local_device("auto") == CPU


def test_each_rank_of_a_node_takes_its_own_gpu(machine):
    machine(4, 4, local_rank=2)
    assert local_device() == torch.device("cuda", 2)


def test_a_rank_that_is_shown_its_own_gpu_alone_takes_it(machine, caplog):
    machine(4, 1, local_rank=2)
    assert local_device() == torch.device("cuda", 0)
    assert "--gpu-bind=none" in caplog.text
    assert os.environ["LOCAL_RANK"] == "0"  # accelerate and DeepSpeed look there


def test_memory_of_a_gpu_is_kept_in_segments_that_grow(machine, monkeypatch):
    machine(0, 0)
    local_device()
    assert "PYTORCH_ALLOC_CONF" not in os.environ
    machine(1, 1)
    local_device()
    assert (
        os.environ["PYTORCH_ALLOC_CONF"]
        == os.environ["PYTORCH_CUDA_ALLOC_CONF"]
        == "expandable_segments:True"
    )
    machine(1, 1)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")
    local_device()
    assert "PYTORCH_ALLOC_CONF" not in os.environ


def test_more_ranks_than_gpus_are_refused(machine):
    machine(2, 2, local_rank=2)
    with refused("rank-without-gpu", MissingError, names=("LOCAL_RANK 2", "2 GPUs")):
        local_device()


@pytest.mark.parametrize(
    ("dtype", "where", "has_bfloat16", "expected"),
    [
        ("auto", CPU, True, torch.float32),
        ("auto", GPU, True, torch.bfloat16),
        ("auto", GPU, False, torch.float32),
        ("float32", GPU, True, torch.float32),
        ("bfloat16", CPU, False, torch.bfloat16),
    ],
)
def test_precision(monkeypatch, dtype, where, has_bfloat16, expected):
    monkeypatch.setattr(
        device.torch.cuda, "is_bf16_supported", lambda including_emulation: has_bfloat16
    )
    assert compute_dtype(ModelConfig(dtype=dtype), where) == expected


def test_the_peak_of_a_cpu_is_the_largest_resident_set():
    cpu = torch.device("cpu")
    filled = torch.ones(50_000_000)
    peak = memory_in_use(cpu)
    assert peak >= max(filled.nbytes, psutil.Process().memory_info().rss - 10**7)
    del filled
    assert memory_in_use(cpu) >= peak - 10**7  # the kernel counts in batches
    assert describe_device(cpu) == Device(False, psutil.virtual_memory().total)


def test_tests_see_no_gpu():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert not torch.cuda.is_available()


def test_attention_on_a_gpu_plans_nothing_by_shape(machine):
    """cuDNN's attention makes a plan for every shape; torch prefers it from Hopper on."""
    machine(1, 1)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        local_device()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
