"""Does ZeRO-2 with ``overlap_comm`` lose gradients? Needs one GPU and no second rank.

    python -m tests.gpu.gradient_race_job cuda RESULT.json

The process is rank 0 of four in torch's fake process group, which communicates nothing. On a GPU
each all-reduce takes 20 ms of its stream, so a gradient that is freed too early is overwritten by
the backward pass. The gradients that rank 0 keeps are compared with those of a run without overlap.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.zero import stage_1_and_2
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainer.planning.memory import reduce_bucket_elements

RANKS = 4
LAYERS = 12
ALL_REDUCE_CYCLES = 30_000_000  # 20 ms at 1.5 GHz
SHAPES = {"cuda": (4096, 2048), "cpu": (64, 32)}  # width of the matrices, rows of the input


@contextmanager
def slow_all_reduce(device: str) -> Iterator[None]:
    """Lengthen DeepSpeed's all-reduces on a GPU."""
    comm = stage_1_and_2.dist
    plain = comm.all_reduce

    def slow(*arguments: Any, **options: Any) -> Any:
        result = plain(*arguments, **options)
        if device == "cuda":
            torch.cuda._sleep(ALL_REDUCE_CYCLES)
        return result

    comm.all_reduce = slow
    try:
        yield
    finally:
        comm.all_reduce = plain


def kept_gradients(device: str, overlap: bool, bucket: int) -> torch.Tensor:
    """Return the gradients of rank 0's partition after two backward passes, on the host."""
    width, rows = SHAPES[device]
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(width, width, bias=False), nn.Tanh()]
    model = nn.Sequential(*layers).bfloat16().to(device)
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 2, "reduce_bucket_size": bucket, "overlap_comm": overlap},
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    inputs = torch.randn(rows, width, device=device, dtype=torch.bfloat16)
    engine.set_gradient_accumulation_boundary(True)
    with slow_all_reduce(device):
        for _ in range(2):  # the second pass finds memory that the first one has freed
            engine.optimizer.averaged_gradients = {}
            engine.backward(engine(inputs).float().square().mean() * 1e3)
    [gradients] = engine.optimizer.averaged_gradients.values()
    kept = torch.cat([gradient.float().flatten() for gradient in gradients]).cpu()
    engine.destroy()
    return kept


def measure(device: str) -> dict[str, float]:
    """Return the largest differences from gradients without overlap, and their largest value."""
    width, _ = SHAPES[device]
    matrix = width * width
    expected = kept_gradients(device, overlap=False, bucket=matrix // 2)
    cases = {
        "without overlap again": (False, matrix // 2),
        "bucket below the matrices": (True, matrix // 2),
        "bucket of a run": (True, reduce_bucket_elements(2, LAYERS * matrix, matrix)),
    }
    results = {"largest gradient": float(expected.abs().max())}
    for name, (overlap, bucket) in cases.items():
        difference = (kept_gradients(device, overlap, bucket) - expected).abs()
        results[name] = float(difference.max())
        count = int((difference > 0).sum())
        print(f"{device}, {name}: largest difference {results[name]:.3g}, {count:,} of them")
    return results


def main() -> None:
    device, path = sys.argv[1:]
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(RANKS)}
    os.environ |= variables | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled
    Path(path).write_text(json.dumps(measure(device)), encoding="utf-8")


if __name__ == "__main__":
    main()
