"""Weights from the trainer's GPU to those of vLLM servers, by vLLM's own NCCL backend and its
trainer side.

Rank 0 broadcasts to all workers of all servers, a few parameters at a time; HTTP carries only names
and shapes. The group is formed over an open port with vLLM's pickles, and NCCL trusts its network:
for machines of your own.
"""

import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed.weight_transfer import ParamMeta, WeightSource, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from trainer.errors import EngineError, UserError
from trainer.parallel.interface import own_address_towards
from trainer.policy.adapters import base_parameters
from trainer.rollouts.vllm.client import VllmServer
from trainer.rollouts.vllm.sync import named_weights


@dataclass
class NcclTransfer:
    """Sends weights from rank 0 to GPUs that compute in ``dtype``."""

    servers: Sequence[VllmServer]
    rank: int
    dtype: torch.dtype
    sender: Any = None  # of vLLM, once it is connected

    def send(self, model: nn.Module) -> None:
        """Send all weights to servers that do not sample; the update stays open.

        Raises:
            EngineError: the group cannot be formed, or a transfer failed.
        """
        try:
            if self.sender is None:
                self.sender = self._connect(model)
            # The transfer reads the parameters on streams of its own.
            torch.accelerator.synchronize()
            self.sender.send_weights()
        except UserError:
            self.sender = None
            raise
        except Exception as error:
            self.sender = None
            raise EngineError(
                f"weights do not reach the vLLM servers by NCCL: {type(error).__name__}: {error}",
                "rollout.vllm.server_weight_transfer",
                "see the servers' logs, with NCCL_DEBUG=INFO; or use server_weight_transfer=http "
                "on both sides",
            ) from error

    def _connect(self, model: nn.Module) -> Any:
        sizes = [server.world_size() for server in self.servers] if self.rank == 0 else []
        address, port = _rendezvous([server.url for server in self.servers])
        return WeightTransferTrainerFactory.trainer_init(
            NCCLTrainerInitInfo(address, port, 1 + sum(sizes), rank=self.rank),
            client=_AllServers(self.servers, sizes),
            source=PolicyWeights(model, self.dtype),
        )


@dataclass
class PolicyWeights(WeightSource):  # type: ignore[misc]
    """The policy's parameters in the servers' dtype, whole, one at a time."""

    model: nn.Module
    dtype: torch.dtype

    def metadata(self) -> list[Any]:
        """Return names, dtypes and whole shapes; gathers nothing."""
        return [
            ParamMeta(
                base.name,
                self.dtype,
                tuple(getattr(base.parameter, "ds_shape", base.parameter.shape)),
            )
            for base in base_parameters(self.model)
        ]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, weight in named_weights(self.model):
            yield name, weight.to(self.dtype)


class _AllServers:
    """vLLM's client protocol for several servers, whose workers have ranks one after the other."""

    def __init__(self, servers: Sequence[VllmServer], sizes: Sequence[int]) -> None:
        self._servers = servers
        self._offsets = list(accumulate(sizes, initial=0))[:-1]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Connect the servers; they answer when all have joined."""
        first = init_info["rank_offset"]
        infos = [{**init_info, "rank_offset": first + offset} for offset in self._offsets]
        _at_once(lambda server, info: server.connect(info), self._servers, infos)

    def start_weight_update(self) -> None:
        """Open the update."""
        for server in self._servers:
            server.start_update()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Let the servers receive the weights; they answer when they have everything."""
        _at_once(
            lambda server, info: server.update(info),
            self._servers,
            [update_info] * len(self._servers),
        )

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Do nothing: the engine names the weights when it ends the update."""


def _at_once(
    call: Callable[[VllmServer, Any], None], servers: Sequence[VllmServer], infos: Sequence[Any]
) -> None:
    with ThreadPoolExecutor(len(servers), thread_name_prefix="weights") as pool:
        list(pool.map(call, servers, infos))


def _rendezvous(urls: Sequence[str]) -> tuple[str, int]:
    """Return an address of this machine that all servers can reach, and a free port."""
    addresses = [own_address_towards(url) for url in urls]
    address = next((a for a in addresses if not a.startswith("127.")), addresses[0])
    with socket.socket() as free:
        free.bind((address, 0))
        return address, free.getsockname()[1]
