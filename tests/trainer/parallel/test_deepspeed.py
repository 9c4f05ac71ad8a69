import os
from types import SimpleNamespace

import pytest
import torch
from accelerate import PartialState
from deepspeed.utils.config import get_timers_config
from transformers import AutoConfig, AutoModelForCausalLM

from trainer.config.schema import TrainConfig, apply_overrides, load_config
from trainer.parallel import deepspeed
from trainer.parallel.deepspeed import bucket_sizes, optimizer_threads, zero_config
from trainer.parallel.fragments import Fragment
from trainer.planning.memory import Device, RunMemory
from trainer.policy.architectures import model_size

CPU = torch.device("cpu")


def config(**parallel):
    return apply_overrides(
        TrainConfig(), {f"parallel.{key}": value for key, value in parallel.items()}
    )


def test_zero_configuration():
    in_float32 = zero_config(config(strategy="deepspeed", zero_stage=2), CPU)
    assert in_float32["zero_optimization"] == {"stage": 2}
    assert in_float32["gradient_accumulation_steps"] == 1
    assert in_float32["gradient_clipping"] == 1.0
    assert in_float32["bf16"] == {"enabled": False}
    assert not get_timers_config(in_float32).enabled  # DeepSpeed's own reading of the key

    settings = config(strategy="deepspeed", zero_stage=3, offload="parameters")
    low = zero_config(apply_overrides(settings, {"model.dtype": "bfloat16"}), torch.device("cuda"))
    assert low["bf16"] == {"enabled": True, "check_grad_overflow": True}
    assert low["data_types"] == {"grad_accum_dtype": "fp32"}
    host = {"device": "cpu", "pin_memory": True}
    zero = {"stage": 3, "overlap_comm": True, "offload_optimizer": host, "offload_param": host}
    assert low["zero_optimization"] == zero

    # Stage 0 is clipped by the trainer, and keeps float32 weights whatever it computes in.
    replicated = config(strategy="deepspeed", zero_stage=0)
    replicated = zero_config(apply_overrides(replicated, {"model.dtype": "bfloat16"}), CPU)
    assert (replicated["gradient_clipping"], replicated["bf16"]) == (0.0, {"enabled": False})


@pytest.mark.parametrize(
    ("environment", "threads"),
    [
        ({}, 32),
        ({"LOCAL_WORLD_SIZE": "64"}, 1),
        ({"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}, 8),
        ({"OMP_NUM_THREADS": "6", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}, 6),
        # a trial of a sweep has what it reserved
        ({"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "4"}, 1),
    ],
)
def test_an_offloaded_optimizer_has_its_share_of_the_cores(environment, threads):
    assert optimizer_threads(32, environment) == threads


def test_many_gradients_are_reduced_together():
    def buckets(width, sizes, stage=3):
        config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(hidden_size=width))
        parameters = [torch.empty(size, device="meta", requires_grad=True) for size in sizes]
        parameters.append(torch.empty(10**9, device="meta"))  # frozen: has no gradient to reduce
        model = SimpleNamespace(
            causal_lm=SimpleNamespace(config=config), parameters=lambda: parameters
        )
        return bucket_sizes(model, stage)

    assert buckets(2048, [3_000_000_000, 85_938_176]) == {
        "reduce_bucket_size": 50_000_000,
        "stage3_prefetch_bucket_size": int(0.9 * 2048**2),
        "stage3_param_persistence_threshold": 20480,
    }
    assert buckets(32, [1000, 500])["reduce_bucket_size"] == 1500  # no more than there is


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize(
    "name", ["Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"]
)
def test_no_trained_parameter_exceeds_a_bucket_at_stages_1_and_2(stage, name):
    shape = AutoConfig.for_model(**model_size(name).settings)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape)
    largest = max(parameter.numel() for parameter in model.parameters())
    wrapped = SimpleNamespace(causal_lm=model, parameters=model.parameters)
    assert bucket_sizes(wrapped, stage)["reduce_bucket_size"] == max(50_000_000, largest)
    # the memory plan has the same number
    config = load_config("kk_3b", [f"parallel.zero_stage={stage}", f"model.name_or_path={name}"])
    planned = RunMemory(config, model_size(name), Device(True), ranks=4)
    assert planned._largest_trained() == largest


def test_a_cpu_is_used_beside_a_gpu(monkeypatch):
    """accelerate takes a visible GPU unless it is given a device; `cpu=True` would turn DeepSpeed
    off.
    """
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cuda:0")
    monkeypatch.setattr(
        deepspeed, "Accelerator", lambda **options: os.environ["ACCELERATE_TORCH_DEVICE"]
    )
    assert deepspeed._accelerator(zero_config(config(strategy="deepspeed"), CPU), CPU) == "cpu"
    state = PartialState.__new__(PartialState)
    monkeypatch.setattr(PartialState, "_shared_state", {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    state.__init__()
    assert state.device == CPU


class Saved:
    """A checkpoint of the parameters a (2 elements) and b (3 elements) after 7 updates."""

    def __init__(self):
        self.values = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0, 4.0, 5.0])}

    def keys(self, parameter):
        return ["step", "exp_avg"]

    def scalar(self, parameter, key):
        return torch.tensor(7.0)

    def elements(self, parameter, key, start, count):
        values = self.values[parameter][start : start + count]
        return values if key == "weights" else values / 10


def test_fragments_fill_a_flat_tensor_and_its_state_except_for_the_padding():
    master = torch.full((5,), -1.0)
    state = {}
    for parameter, start, count, offset in (("a", 1, 1, 0), ("b", 0, 3, 1)):
        fragment = Fragment(parameter=parameter, start=start, count=count, flat=0, offset=offset)
        deepspeed._load_fragment(Saved(), fragment, master, state)
    assert master.tolist() == [2, 3, 4, 5, -1]
    torch.testing.assert_close(state["exp_avg"], torch.tensor([0.2, 0.3, 0.4, 0.5, 0.0]))
    assert state["step"] == 7
