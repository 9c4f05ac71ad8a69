import torch

from trainer.config.schema import TrainConfig, apply_overrides
from trainer.parallel.deepspeed import zero_config

CPU = torch.device("cpu")


def config(**parallel) -> TrainConfig:
    return apply_overrides(TrainConfig(), {f"parallel.{key}": value for key, value in parallel.items()})


def test_zero_configuration():
    in_float32 = zero_config(config(strategy="deepspeed", zero_stage=2), CPU)
    assert in_float32["zero_optimization"] == {"stage": 2}
    assert in_float32["gradient_accumulation_steps"] == 1
    assert in_float32["gradient_clipping"] == 1.0
    assert in_float32["bf16"] == {"enabled": False}

    settings = config(strategy="deepspeed", zero_stage=3, offload="parameters")
    low = zero_config(apply_overrides(settings, {"model.dtype": "bfloat16"}), torch.device("cuda"))
    assert low["bf16"] == {"enabled": True, "check_grad_overflow": True}
    assert low["data_types"] == {"grad_accum_dtype": "fp32"}
    host = {"device": "cpu", "pin_memory": True}
    assert low["zero_optimization"] == {"stage": 3, "offload_optimizer": host, "offload_param": host}

    # Stage 0 is clipped by the trainer, and keeps float32 weights whatever it computes in.
    replicated = config(strategy="deepspeed", zero_stage=0)
    replicated = zero_config(apply_overrides(replicated, {"model.dtype": "bfloat16"}), CPU)
    assert (replicated["gradient_clipping"], replicated["bf16"]) == (0.0, {"enabled": False})
