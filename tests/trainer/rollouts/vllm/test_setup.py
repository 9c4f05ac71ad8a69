from types import SimpleNamespace

import pytest
import torch

from loptune.errors import ConfigError
from tests.conftest import random_model
from tests.refusals import refused
from trainer.config.rollout import VllmConfig
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.rollouts.vllm import setup
from trainer.rollouts.vllm.setup import EngineSetup, engine_setup, llm_options

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)


def config(**changes):
    keys = {"prompt": "data.max_prompt_tokens", "new": "rollout.max_new_tokens"}
    keys |= {"context": "rollout.vllm.max_model_len"}
    return apply_overrides(TrainConfig(), {keys[name]: value for name, value in changes.items()})


def test_the_context_holds_the_longest_prompt_with_the_longest_completion():
    assert setup.context_length(config(prompt=100, new=200)) == 300
    assert setup.context_length(config(prompt=100, new=200, context=450)) == 450
    with refused("context-too-short", ConfigError, names=("rollout.vllm.max_model_len", "299")):
        setup.context_length(config(prompt=100, new=200, context=299))
    long = apply_overrides(
        config(prompt=100, new=100, context=299), {"evaluation.max_new_tokens": 200}
    )
    with refused("context-too-short", ConfigError, names=("evaluation.max_new_tokens",)) as caught:
        setup.context_length(long)
    assert "rollout.max_new_tokens" not in caught.value.where


def test_a_rank_decodes_its_share_of_a_step_at_one_time():
    keys = {"rollout.prompts_per_step": 64, "rollout.group_size": 8, "data.max_prompt_tokens": 100}
    config = apply_overrides(TrainConfig(), {**keys, "rollout.max_new_tokens": 200})
    model = random_model()
    assert engine_setup(config, model, ranks=4).requests == 128
    assert engine_setup(config, model, ranks=1).requests == 512
    assert engine_setup(config, model, ranks=64).requests == 16
    chosen = apply_overrides(config, {"rollout.vllm.max_num_seqs": 40})
    assert engine_setup(chosen, model, ranks=4).requests == 40


def test_on_a_share_of_a_gpu_the_cache_is_not_measured(monkeypatch):
    """vLLM stops if a neighbor frees memory while it measures how large its cache may be."""
    model = SimpleNamespace(
        parameters=lambda: iter([SimpleNamespace(device=GPU)]),
        num_parameters=lambda: 500_000_000,
        config=SimpleNamespace(max_position_embeddings=8192),
    )
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80 * 10**9)
    )
    whole = engine_setup(config(), model, ranks=1).settings
    assert (whole.gpu_memory_utilization, whole.kv_cache_mb) == (0.45, None)
    monkeypatch.setenv("LOPTUNE_GPU_FRACTION", "0.5")
    shared = llm_options(
        engine_setup(apply_overrides(config(), {"model.dtype": "bfloat16"}), model, ranks=1), GPU, 1
    )
    assert shared["gpu_memory_utilization"] == 0.225
    # 0.8 of what 0.225 of 80 GB leave beside 1 GB of weights
    assert shared["kv_cache_memory_bytes"] == int(0.8 * 17e9) >> 20 << 20


def test_options_on_a_gpu():
    setup = EngineSetup(
        "model", 4496, "bfloat16", VllmConfig(gpu_memory_utilization=0.4), requests=128
    )
    options = llm_options(setup, GPU, ranks=4)
    assert options["max_num_seqs"] == 128
    assert options["max_num_batched_tokens"] == 8192
    assert options["gpu_memory_utilization"] == 0.4
    assert options["enable_sleep_mode"] and not options["enforce_eager"]
    assert options["distributed_executor_backend"] == "external_launcher"
    assert "kv_cache_memory_bytes" not in options and "block_size" not in options
    assert not llm_options(EngineSetup("model", 64, settings=VllmConfig(sleep_level=0)), GPU, 1)[
        "enable_sleep_mode"
    ]


def test_options_on_a_cpu_keep_whole_prompts_in_one_step():
    options = llm_options(EngineSetup("model", 300), CPU, ranks=1)
    assert options["enforce_eager"] and not options["enable_sleep_mode"]
    assert options["enable_chunked_prefill"] is False
    assert (options["kv_cache_memory_bytes"], options["block_size"]) == (256 * 2**20, 32)
    assert options["max_num_batched_tokens"] == 4096
    assert llm_options(EngineSetup("model", 5000), CPU, ranks=1)["max_num_batched_tokens"] == 5000
    assert "max_num_seqs" not in options and "distributed_executor_backend" not in options


def test_tensor_parallel_engines_share_no_graph_buffers():
    two = EngineSetup("model", 64, settings=VllmConfig(tensor_parallel=2))
    options = llm_options(two, GPU, ranks=4)
    assert options["disable_custom_all_reduce"] is True
    assert options["compilation_config"] == {"pass_config": {"fuse_allreduce_rms": False}}
    alone = llm_options(EngineSetup("model", 64), GPU, ranks=4)
    assert not {"disable_custom_all_reduce", "compilation_config"} & alone.keys()


@pytest.mark.parametrize("known", [True, False])
def test_autotuning_with_collectives_is_off_if_vllm_has_the_option(known, tmp_path, monkeypatch):
    source = tmp_path / "vllm" / "engine" / "arg_utils.py"
    source.parent.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").touch()
    source.write_text("enable_flashinfer_autotune: bool = True\n" if known else "")
    monkeypatch.syspath_prepend(tmp_path)
    options = llm_options(EngineSetup("model", 64), GPU, ranks=1)
    assert options.get("enable_flashinfer_autotune") == (False if known else None)
    on_cpu = llm_options(EngineSetup("model", 64), CPU, ranks=1)
    assert "enable_flashinfer_autotune" not in on_cpu
