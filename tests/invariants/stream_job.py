"""What one rank does in the test of gradient lifetimes: a backward pass under ZeRO-2 with
``overlap_comm``, on a CPU that claims to have streams.

Nothing runs asynchronously here. The job only watches which gradients DeepSpeed frees on the host
while a real device's reduction stream would still use them.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from tests.invariants.ranks import be_a_rank
from tests.invariants.update_job import update_config
from trainer.config.schema import apply_overrides
from trainer.parallel import deepspeed as ours
from trainer.parallel.strategy import make_parallel


class Stream:
    def __init__(self, **options: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


class Event:
    def __init__(self, **options: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass


@contextmanager
def claimed_streams() -> Iterator[None]:
    """Let the CPU accelerator claim asynchronous streams."""
    accelerator = type(get_accelerator())
    compute = Stream()
    current = [compute]

    @contextmanager
    def on_stream(stream: Stream) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    claims = {
        "resolves_data_dependency": lambda self: False,
        "is_synchronized_device": lambda self: False,
        "Stream": property(lambda self: Stream),
        "Event": property(lambda self: Event),
        "stream": lambda self, stream: on_stream(stream),
        "current_stream": lambda self, *device: current[-1],
        "default_stream": lambda self, *device: compute,
        "synchronize": lambda self, *device: None,
    }
    with ExitStack() as stack:
        for name, claim in claims.items():
            stack.enter_context(patch.object(accelerator, name, claim, create=True))
        yield


class GradientLifetimes:
    """Counts gradients above the bucket, and those freed without `record_stream`."""

    def __init__(self) -> None:
        self.oversized = 0
        self.freed_early = 0
        self._recorded: set[int] = set()

    def record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        self._recorded.add(tensor.untyped_storage()._cdata)

    @contextmanager
    def watched(self) -> Iterator[None]:
        reduce = DeepSpeedZeroOptimizer.reduce_ipg_grads

        def watch(optimizer: Any, *arguments: Any, **options: Any) -> Any:
            storages = []
            for parameter in optimizer.extra_large_param_to_reduce.values():
                if parameter is not None:
                    storage = parameter.grad.untyped_storage()
                    storages.append((StorageWeakRef(storage), storage._cdata))
                    del storage
            parameter = None
            result = reduce(optimizer, *arguments, **options)
            for reference, address in storages:
                self.oversized += 1
                self.freed_early += reference.expired() and address not in self._recorded
            return result

        def record(tensor: torch.Tensor, stream: Any) -> None:
            self.record_stream(tensor, stream)

        with (
            patch.object(DeepSpeedZeroOptimizer, "reduce_ipg_grads", watch),
            patch.object(torch.Tensor, "record_stream", record),
        ):
            yield


class Head(nn.Module):
    """A model as `bucket_sizes` reads it: two matrices and a much larger one before them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 400), nn.Linear(400, 8))


def lifetimes(config: Any, bucket: int) -> dict[str, int]:
    parallel = make_parallel(config)
    torch.manual_seed(0)
    model = Head().bfloat16()
    settings = dict(parallel._accelerator.deepspeed_plugin.deepspeed_config)
    settings["zero_optimization"] |= {"overlap_comm": True, "reduce_bucket_size": bucket}
    counted = GradientLifetimes()
    with claimed_streams(), counted.watched():
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        engine, *_ = deepspeed.initialize(model=model.layers, optimizer=optimizer, config=settings)
        engine.set_gradient_accumulation_boundary(True)
        engine.backward(engine(torch.ones(2, 8, dtype=torch.bfloat16)).float().pow(2).mean())
        engine.destroy()
    parallel.close()
    return {"oversized": counted.oversized, "freed_early": counted.freed_early}


def work(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    stage_2 = {"parallel.strategy": "deepspeed", "parallel.zero_stage": 2}
    config = update_config(Path(job["model"]), stage_2 | {"model.dtype": "bfloat16"})
    config = apply_overrides(config, {"optim.max_grad_norm": 1.0})
    sizes = [parameter.numel() for parameter in Head().parameters()]
    with patch("trainer.planning.memory.REDUCE_BUCKET_ELEMENTS", 100):
        bucket = ours.reduce_bucket_elements(2, sum(sizes), max(sizes))
    return {"below": lifetimes(config, 100), "ours": lifetimes(config, bucket)}


if __name__ == "__main__":
    be_a_rank(work)
