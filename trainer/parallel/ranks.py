"""The ranks of one training run: who they are, and the few things they do together."""

import atexit
import os
import socket
import sys
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import cache
from itertools import chain, zip_longest
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import Module
from transformers import PreTrainedModel
from typing_extensions import override

from trainer.config.schema import TrainConfig, dotted_keys, value_of
from trainer.errors import ConfigError
from trainer.parallel.device import local_device
from trainer.parallel.interface import (
    LOOPBACK,
    LOOPBACK_INTERFACE,
    free_port,
    interface_towards_urls,
)
from trainer.policy.weights import (
    host_copy,
    load_optimizer_tensors,
    load_weights,
    optimizer_tensors,
    trained_weights,
)

_FILE_TIMEOUT_S = 3 * 3600
_ABSENT = object()


class Parallel:
    """One process that trains alone.

    A subclass is one rank of several. What is summed, gathered or prepared here is a collective:
    all ranks call it, in the same order.
    """

    rank = 0
    world_size = 1
    shards_parameters = False  # whether a rank holds only a part of every parameter
    shards_optimizer = False  # whether a rank holds only a part of the optimizer's state

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or local_device()

    @property
    def is_main(self) -> bool:
        """Whether this rank writes files, metrics and progress."""
        return self.rank == 0

    def stored_dtype(self, compute_dtype: torch.dtype) -> torch.dtype:
        """Return the dtype in which the policy is loaded: float32 where the module itself holds the
        master weights.
        """
        return torch.float32

    def prepare(self, model: Module, optimizer: torch.optim.Optimizer) -> tuple[Module, Any]:
        """Wrap the policy and its optimizer for this kind of parallelism."""
        return model, optimizer

    def prepare_frozen(self, model: Module) -> Module:
        """Wrap a model that is only read: the reference."""
        return model

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the tensor added over all ranks."""
        return tensor

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return flag

    def gather(self, items: list[Any], after_files: bool = False) -> list[Any]:
        """Return the items of all ranks, on every rank: the first of every rank in rank order, the
        second, ...

        Prompts are dealt to the ranks like cards, so this is the order of the prompts. Others wait
        longer for a rank that may read or write a checkpoint before it comes: ``after_files``.
        """
        return items

    def microbatch(self, model: Module, is_last: bool) -> AbstractContextManager[None]:
        """Return a context for forward and backward of a microbatch; gradients are reduced in the
        last one of a step.
        """
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss that is already normalized over all ranks."""
        loss.backward()

    def step(self, model: Module, optimizer: Any, max_grad_norm: float) -> float:
        """Clip the gradient, take one optimizer step, and return the gradient norm before clipping.

        Where the norm is 0 or not finite the weights stay as they are.
        """
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm))
        if 0 < norm < float("inf"):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return norm

    def full_parameters(self, model: Module) -> AbstractContextManager[None]:
        """Return a context in which every parameter of a prepared model is whole on this rank, to
        be read.
        """
        return nullcontext()

    def weights(self, causal_lm: PreTrainedModel) -> dict[str, Tensor]:
        """Return the policy's `trained_weights`, whole, copied to host memory; empty on ranks other
        than 0.
        """
        weights = trained_weights(causal_lm) if self.is_main else {}
        # tied weights stay one tensor
        copies = {id(tensor): host_copy(tensor) for tensor in weights.values()}
        return {name: copies[id(tensor)] for name, tensor in weights.items()}

    def training_tensors(self, causal_lm: PreTrainedModel, optimizer: Any) -> dict[str, Tensor]:
        """Return the tensors besides the weights that this rank must save to continue training,
        copied to host memory.
        """
        return optimizer_tensors(causal_lm, optimizer)

    def load_training_tensors(
        self, folder: Any, causal_lm: PreTrainedModel, optimizer: Any, tensors: dict[str, Tensor]
    ) -> None:
        """Restore the weights of a checkpoint folder and what `training_tensors` returned."""
        load_weights(folder, causal_lm)
        load_optimizer_tensors(causal_lm, optimizer, tensors)

    def close(self) -> None:
        """Free the models; the processes stay connected for the next run."""


class DistributedParallel(Parallel):
    """One of several ranks with a whole copy of the model each (DistributedDataParallel)."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(local_device(config.parallel.device))
        servers = config.rollout.vllm.server_base_urls if config.rollout.uses_servers else []
        join_ranks(config.parallel.timeout_s, self.device, servers)
        self.rank = torch.distributed.get_rank()
        self.world_size = torch.distributed.get_world_size()
        check_same_config(config, self)

    @override
    def prepare(self, model: Module, optimizer: torch.optim.Optimizer) -> tuple[Module, Any]:
        # Buffers (rotary frequencies) never change: broadcasting them would be a collective in
        # every forward. Without device_ids a forward gets its inputs where they are: lengths and
        # masks on the host.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            wrapped = nn.parallel.DistributedDataParallel(
                model, broadcast_buffers=False, gradient_as_bucket_view=True
            )
            return wrapped, optimizer

    @override
    def sum(self, tensor: Tensor) -> Tensor:
        total = tensor.detach().clone().to(self.device)
        torch.distributed.all_reduce(total)
        return total.to(tensor.device)

    @override
    def any(self, flag: bool) -> bool:
        return bool(self.sum(torch.tensor(float(flag), device=self.device)) > 0)

    @override
    def gather(self, items: list[Any], after_files: bool = False) -> list[Any]:
        parts: list[list[Any]] = [[] for _ in range(self.world_size)]
        torch.distributed.all_gather_object(
            parts, items, group=_file_group() if after_files else None
        )
        dealt = chain.from_iterable(zip_longest(*parts, fillvalue=_ABSENT))
        return [item for item in dealt if item is not _ABSENT]

    @override
    def microbatch(self, model: Module, is_last: bool) -> AbstractContextManager[None]:
        if is_last:
            return nullcontext()
        context: AbstractContextManager[None] = model.no_sync()  # type: ignore[operator]
        return context

    @override
    def backward(self, loss: Tensor) -> None:
        # The gradients of the ranks are averaged, and the loss is already divided by the totals of
        # all ranks.
        (loss * self.world_size).backward()

    @override
    def close(self) -> None:
        reset_accelerate()


def join_ranks(timeout_s: float, device: torch.device, servers: Sequence[str] = ()) -> None:
    """Connect this process with the others, once in its life; a process without any becomes a world
    of one.

    Where MASTER_ADDR is the loopback address, nothing of it can be reached from other machines,
    unless weights go by NCCL to ``servers``, the URLs of vLLM servers, on one of them. Elsewhere
    gloo takes the interface of the route to it: by itself it asks for the host's own name, which
    Debian answers with a loopback address.
    """
    if torch.distributed.is_initialized():
        return
    atexit.register(leave_ranks)
    if "RANK" not in os.environ:
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": LOOPBACK}
        os.environ["MASTER_PORT"] = str(free_port())
    backend = "gloo"
    device_id = None
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "nccl"
        # NCCL would split a communicator of one rank (DeepSpeed issue 8248)
        if os.environ.get("WORLD_SIZE") != "1":
            device_id = device  # without it NCCL guesses a rank's GPU from the rank
    timeout = timedelta(seconds=timeout_s)
    launcher_has_a_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if os.environ["MASTER_ADDR"] != LOOPBACK or launcher_has_a_store:
        interface = interface_towards_urls([f"tcp://{os.environ['MASTER_ADDR']}"])
        if interface != LOOPBACK_INTERFACE:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        torch.distributed.init_process_group(backend, timeout=timeout, device_id=device_id)
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK_INTERFACE)
    if backend == "nccl":
        # "=": no prefix
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface_towards_urls(servers)}")
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group(
        backend,
        timeout=timeout,
        store=_loopback_store(rank, world_size, timeout),
        rank=rank,
        world_size=world_size,
        device_id=device_id,
    )


def _loopback_store(rank: int, world_size: int, timeout: timedelta) -> Any:
    """Return the store in which ranks find each other; the one that torch opens by itself listens
    on all interfaces.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    port = int(os.environ["MASTER_PORT"])
    listener = socket.create_server((LOOPBACK, port)).detach() if rank == 0 else None
    return TCPStore(
        LOOPBACK,
        port,
        world_size,
        is_master=rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener,
    )


@cache
def _file_group() -> Any:
    """Return the ranks while one of them is at files: connected by gloo, whose patience is no other
    collective's.

    NCCL's watchdog would end the process while rank 0 hashes the 100 GB of a checkpoint.
    """
    return torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=_FILE_TIMEOUT_S))


def leave_ranks() -> None:
    """Disconnect this process from the others, at its end."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def end_rank(code: int) -> NoReturn:
    """End this process with an exit code, after `leave_ranks` where the others still answer.

    gloo's threads can outlive the interpreter's orderly shutdown and abort it ("terminate called
    without an active exception"), which would turn a finished run into a failed one.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def reset_accelerate() -> None:
    """Make accelerate forget the strategy of the run before; the process group stays."""
    from accelerate.state import AcceleratorState, GradientState

    os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def check_same_config(config: TrainConfig, parallel: Parallel) -> None:
    """Refuse to train one model with several configurations.

    Raises:
        ConfigError: on every rank, naming the first key that differs and its values.
    """
    values = {key: value_of(config, key) for key in dotted_keys()}
    everyone: list[dict[str, Any]] = parallel.gather([values])
    for rank, theirs in enumerate(everyone):
        for key, value in theirs.items():
            if value != everyone[0][key]:
                raise ConfigError(
                    f"{key} is {everyone[0][key]!r} on rank 0 but {value!r} on rank {rank}",
                    key,
                    "start every rank with the same configuration",
                )
