"""Ranks of a training run and their collectives."""

import atexit
import ctypes
import os
import signal
import socket
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import cache
from itertools import chain, zip_longest
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import Module
from transformers import PreTrainedModel
from typing_extensions import override

from loptune.errors import ConfigError
from trainer.config.schema import TrainConfig, dotted_keys, value_of
from trainer.parallel.device import local_device
from trainer.parallel.fragments import COUNTERS, Fragment, SavedTensors
from trainer.parallel.interface import LOOPBACK, LOOPBACK_INTERFACE, free_port, interface_for_urls
from trainer.policy.weights import (
    host_copy,
    load_optimizer_tensors,
    load_weights,
    optimizer_tensors,
    trained_weights,
)

_FILE_TIMEOUT_S = 3 * 3600
_GLOO_ON_GPUS = "LOPTUNE_GLOO_ON_GPUS"
_SET_PARENT_DEATH_SIGNAL = 1  # constant of prctl(2)
_ABSENT = object()


class Parallel:
    """Single-process training; base class of all strategies.

    Subclasses implement several ranks. `sum`, `any`, `gather` and `prepare*` are collectives: all
    ranks must call them in the same order.
    """

    rank = 0
    world_size = 1
    shards_parameters = False  # whether parameters are sharded over ranks
    shards_optimizer = False  # whether the optimizer state is sharded over ranks

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or local_device()

    @property
    def is_main(self) -> bool:
        """Whether this rank writes files, metrics and progress."""
        return self.rank == 0

    def stored_dtype(self, compute_dtype: torch.dtype) -> torch.dtype:
        """Return the dtype to load the policy in: float32 if the module has the master weights."""
        return torch.float32

    def prepare(self, model: Module, optimizer: torch.optim.Optimizer) -> tuple[Module, Any]:
        """Wrap the policy and its optimizer for this kind of parallelism."""
        return model, optimizer

    def prepare_frozen(self, model: Module) -> Module:
        """Wrap the frozen reference model."""
        return model

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of the tensor over all ranks."""
        return tensor

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return flag

    def gather(self, items: list[Any], after_files: bool = False) -> list[Any]:
        """Gather the items of all ranks on every rank, interleaved: the first item of each rank in
        rank order, then the second, ...

        Prompts are assigned to ranks round-robin, so this restores their order. ``after_files``
        uses a longer timeout, for ranks that may first read or write a checkpoint.
        """
        return items

    def microbatch(self, model: Module, is_last: bool) -> AbstractContextManager[None]:
        """Return the context for a microbatch's forward and backward. Gradients are reduced only in
        the last microbatch of a step (``is_last``).
        """
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Backpropagate a loss that is already normalized over all ranks."""
        loss.backward()

    def step(self, model: Module, optimizer: Any, max_grad_norm: float) -> float:
        """Clip gradients to the norm ``max_grad_norm``, take an optimizer step, and return the norm
        before clipping.

        The weights are not updated if the norm is not finite or, without DeepSpeed, if it is 0.
        """
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm))
        if 0 < norm < float("inf"):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return norm

    def full_parameters(self, model: Module) -> AbstractContextManager[None]:
        """Return a context that gathers all parameters of a prepared model on this rank for
        reading.
        """
        return nullcontext()

    def unsharded(self) -> AbstractContextManager[None]:
        """Return a context in which this rank loads the full model."""
        return nullcontext()

    def weights(self, causal_lm: PreTrainedModel) -> dict[str, Tensor]:
        """Return a host copy of the policy's full `trained_weights` on rank 0; empty on other
        ranks.
        """
        weights = trained_weights(causal_lm) if self.is_main else {}
        # tied weights stay one tensor
        copies = {id(tensor): host_copy(tensor) for tensor in weights.values()}
        return {name: copies[id(tensor)] for name, tensor in weights.items()}

    def training_tensors(self, causal_lm: PreTrainedModel, optimizer: Any) -> dict[str, Tensor]:
        """Return a host copy of this rank's optimizer state, and of its part of the master weights
        if they are sharded.
        """
        return optimizer_tensors(causal_lm, optimizer)

    def load_training_tensors(
        self, folder: Any, causal_lm: PreTrainedModel, optimizer: Any, tensors: dict[str, Tensor]
    ) -> None:
        """Restore the weights of a checkpoint folder and the result of `training_tensors`."""
        load_weights(folder, causal_lm)
        load_optimizer_tensors(causal_lm, optimizer, tensors)

    def fragments(self, causal_lm: PreTrainedModel, optimizer: Any) -> list[Fragment]:
        """Return which elements of the parameters the flat tensors of `training_tensors` contain;
        an empty list if its tensors are complete.
        """
        return []

    def load_any_layout(
        self,
        saved: SavedTensors,
        parameters: Mapping[str, Tensor],
        fragments: Sequence[Fragment],
        optimizer: Any,
    ) -> None:
        """Restore the state of the trained ``parameters`` and their optimizer from a checkpoint of
        a different strategy or number of ranks. Collective.
        """
        optimizer.state.clear()
        for name, parameter in parameters.items():
            count = parameter.numel()
            weights = saved.elements(name, "weights", 0, count)
            parameter.data.copy_(weights.view(parameter.shape))
            for key in saved.keys(name):
                if key in COUNTERS:
                    value = saved.scalar(name, key)
                else:
                    value = saved.elements(name, key, 0, count).view(parameter.shape)
                optimizer.state[parameter][key] = value.to(parameter.device, copy=True)

    def close(self) -> None:
        """Free the models. The process group stays initialized for the next run."""


class DistributedParallel(Parallel):
    """A rank with a full copy of the model (DistributedDataParallel)."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(local_device(config.parallel.device))
        servers = config.rollout.vllm.server_base_urls if config.rollout.uses_servers else []
        join_ranks(config.parallel.timeout_s, self.device, servers)
        self.rank = torch.distributed.get_rank()
        self.world_size = torch.distributed.get_world_size()
        check_same_config(config, self)

    @override
    def prepare(self, model: Module, optimizer: torch.optim.Optimizer) -> tuple[Module, Any]:
        # Buffers (rotary frequencies) are constant; broadcasting them would add a collective to
        # every forward. Without device_ids DDP does not move the inputs, so lengths and masks stay
        # on the host.
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
            parts, items, group=_io_group() if after_files else None
        )
        interleaved = chain.from_iterable(zip_longest(*parts, fillvalue=_ABSENT))
        return [item for item in interleaved if item is not _ABSENT]

    @override
    def microbatch(self, model: Module, is_last: bool) -> AbstractContextManager[None]:
        if is_last:
            return nullcontext()
        context: AbstractContextManager[None] = model.no_sync()  # type: ignore[operator]
        return context

    @override
    def backward(self, loss: Tensor) -> None:
        # DDP averages gradients over ranks, but the loss is already normalized by the totals of all
        # ranks.
        (loss * self.world_size).backward()

    @override
    def close(self) -> None:
        reset_accelerate()


def join_ranks(timeout_s: float, device: torch.device, servers: Sequence[str] = ()) -> None:
    """Initialize the process group once per process; its collectives time out after ``timeout_s``
    seconds. A process without RANK becomes a world of size 1.

    If MASTER_ADDR is the loopback address, all sockets listen on loopback only, unless NCCL sends
    weights to vLLM ``servers`` on other machines. Otherwise gloo uses the interface that routes to
    MASTER_ADDR, because gloo's default, the address of the host's own name, is a loopback address
    on Debian.
    """
    if torch.distributed.is_initialized():  # by an earlier run, or by the user's own program
        _io_group()
        return
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent()
    atexit.register(leave_ranks)
    if "RANK" not in os.environ:
        _become_the_only_rank()
    is_local = (
        os.environ["MASTER_ADDR"] == LOOPBACK
        and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"  # not the launcher's store
    )
    _choose_interfaces(device, servers, is_local)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    options = _group_options(timedelta(seconds=timeout_s), device, is_local)
    torch.distributed.init_process_group(**options)
    # Created here, because creating a group is a collective. The first use may be in the thread
    # that writes a checkpoint, while the main thread is in another collective. For the same reason
    # no group may be created on some ranks only: with a device_id, NCCL connects every new group at
    # once, so the call would never return.
    _io_group()


def _become_the_only_rank() -> None:
    """Set the variables of the rendezvous for a world of size 1."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": LOOPBACK}
    os.environ["MASTER_PORT"] = str(free_port())


def _group_options(timeout: timedelta, device: torch.device, is_local: bool) -> dict[str, Any]:
    """Return the arguments of ``init_process_group``. Ranks on one machine meet in a store that
    listens on loopback.
    """
    options: dict[str, Any] = {"backend": backend_for(device), "timeout": timeout}
    # with one rank, NCCL would split the communicator (DeepSpeed issue 8248)
    if options["backend"] == "nccl" and os.environ.get("WORLD_SIZE") != "1":
        options["device_id"] = device  # otherwise NCCL guesses the GPU from the rank
    if is_local:
        rank = int(os.environ["RANK"])
        world_size = int(os.environ["WORLD_SIZE"])
        store = _loopback_store(rank, world_size, timeout)
        options |= {"rank": rank, "world_size": world_size, "store": store}
    return options


def backend_for(device: torch.device) -> Literal["nccl", "gloo"]:
    """Return the backend of a device's process group.

    NCCL refuses two ranks on one GPU. With LOPTUNE_GLOO_ON_GPUS=1, which is for tests, the ranks
    use gloo, so that several can share a GPU.
    """
    if device.type == "cuda" and os.environ.get(_GLOO_ON_GPUS) != "1":
        return "nccl"
    return "gloo"


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent, the launcher of the ranks, has died.

    Each rank has its own session, so ranks would survive if torchrun or its process group were
    killed, and keep their GPU memory.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the call
        exit_rank(1)


def _choose_interfaces(device: torch.device, servers: Sequence[str], is_local: bool) -> None:
    """Set the network interfaces of gloo and NCCL, unless the user has set them."""
    if is_local:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK_INTERFACE)
        if device.type == "cuda":
            # "=" requires an exact match, not a prefix
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface_for_urls(servers)}")
        return
    interface = interface_for_urls([f"tcp://{os.environ['MASTER_ADDR']}"])
    if interface != LOOPBACK_INTERFACE:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)


def _loopback_store(rank: int, world_size: int, timeout: timedelta) -> Any:
    """Return a rendezvous store that listens on loopback only; torch's default store listens on all
    interfaces.
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
def _io_group() -> Any:
    """Return a gloo process group with a longer timeout, for collectives during file operations.
    NCCL's watchdog would abort while rank 0 hashes a 100 GB checkpoint.
    """
    return torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=_FILE_TIMEOUT_S))


def leave_ranks() -> None:
    """Destroy the process group at exit."""
    _io_group.cache_clear()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def exit_rank(code: int) -> NoReturn:
    """Exit immediately with ``code``. Call `leave_ranks` first if the other ranks are still alive.

    During a normal interpreter shutdown, gloo's threads can abort the process ("terminate called
    without an active exception"), so a finished run would look failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def reset_accelerate() -> None:
    """Reset accelerate's state from a previous run; the process group stays."""
    from accelerate.state import AcceleratorState, GradientState

    os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def check_same_config(config: TrainConfig, parallel: Parallel) -> None:
    """Raise unless all ranks have the same configuration.

    Raises:
        ConfigError: raised on every rank; the error shows the first key that differs.
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
                    code="ranks-disagree",
                )
