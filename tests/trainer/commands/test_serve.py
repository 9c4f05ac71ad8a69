import json

import pytest
import torch

from loptune.errors import ConfigError
from tests.conftest import random_model
from tests.refusals import refused
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.rollouts.vllm import command as module
from trainer.rollouts.vllm.command import server_command


@pytest.fixture
def config(tmp_path):
    random_model().config.save_pretrained(tmp_path)  # 512 positions
    changes = {
        "model.name_or_path": str(tmp_path),
        "data.max_prompt_tokens": 100,
        "rollout.max_new_tokens": 200,
    }
    return apply_overrides(TrainConfig(), changes)


def option(command, name):
    return command[command.index(name) + 1]


def test_a_server_has_context_dummy_weights_and_a_loopback_address(config):
    command = server_command(config, "127.0.0.1", 8123, None)
    assert option(command, "--max-model-len") == "300"
    assert option(command, "--load-format") == "dummy"
    assert (option(command, "--host"), option(command, "--port")) == ("127.0.0.1", "8123")
    assert json.loads(option(command, "--weight-transfer-config")) == {"backend": "loptune_http"}
    assert option(command, "--logprobs-mode") == "processed_logprobs"
    assert "--trust-remote-code" not in command
    middleware = [command[i + 1] for i, word in enumerate(command) if word == "--middleware"]
    # the last is the first that sees a request
    assert middleware[-1] == "trainer.rollouts.vllm.guard.TokenMiddleware"
    assert middleware[0] == "trainer.rollouts.vllm.upload.UploadMiddleware"


def test_a_server_on_gpus(config):
    spread = apply_overrides(config, {"rollout.vllm.tensor_parallel": 2})
    command = server_command(spread, "127.0.0.1", 1, gpu_memory_utilization=0.9)
    assert option(command, "--gpu-memory-utilization") == "0.9"
    assert option(command, "--tensor-parallel-size") == "2"
    assert "--enforce-eager" not in command and "--block-size" not in command
    assert "--disable-custom-all-reduce" in command


def test_a_server_that_takes_weights_by_nccl(config):
    by_nccl = apply_overrides(config, {"rollout.vllm.server_weight_transfer": "nccl"})
    command = server_command(by_nccl, "127.0.0.1", 1, gpu_memory_utilization=0.9)
    assert json.loads(option(command, "--weight-transfer-config")) == {"backend": "nccl"}


def test_without_vllm_it_says_what_to_install(config, monkeypatch):
    monkeypatch.setattr(module, "vllm_installed", lambda: False)
    with refused("no-vllm", ConfigError) as caught:
        module.serve(config, "127.0.0.1", 8000, 0.9)
    assert "make install-gpu" in caught.value.hint


def test_a_server_starts_without_flashinfers_sampler_unless_it_is_wanted(config, monkeypatch):
    environments = []
    monkeypatch.setattr(module, "vllm_installed", lambda: True)
    monkeypatch.setattr(module.os, "execve", lambda *arguments: environments.append(arguments[2]))
    monkeypatch.delenv("VLLM_USE_FLASHINFER_SAMPLER", raising=False)
    module.serve(config, "127.0.0.1", 8000, 0.9)
    monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", "1")
    module.serve(config, "127.0.0.1", 8000, 0.9)
    assert [environment["VLLM_USE_FLASHINFER_SAMPLER"] for environment in environments] == [
        "0",
        "1",
    ]
    assert environments[0]["VLLM_SERVER_DEV_MODE"] == "1"


def test_a_tensor_parallel_server_has_the_environment_of_the_ranks(config, monkeypatch):
    environments = []
    monkeypatch.setattr(module, "vllm_installed", lambda: True)
    monkeypatch.setattr(module.os, "execve", lambda *arguments: environments.append(arguments[2]))
    for size in (1, 2):
        spread = apply_overrides(config, {"rollout.vllm.tensor_parallel": size})
        module.serve(spread, "127.0.0.1", 8000, 0.9)
    names = ("VLLM_ALLREDUCE_USE_FLASHINFER", "VLLM_ALLREDUCE_USE_SYMM_MEM")
    assert [[set_.get(name) for name in names] for set_ in environments] == [
        [None, None],
        ["0", "0"],
    ]


def test_a_server_does_not_inherit_the_trainers_allocator(config, monkeypatch):
    environments = []
    monkeypatch.setattr(module, "vllm_installed", lambda: True)
    monkeypatch.setattr(module.os, "execve", lambda *arguments: environments.append(arguments[2]))

    def device_of_a_trainer(wanted):
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
        return torch.device("cpu")

    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setattr(module, "local_device", device_of_a_trainer)
    module.serve(config, "127.0.0.1", 8000, 0.9)
    assert "PYTORCH_ALLOC_CONF" not in environments[0]
