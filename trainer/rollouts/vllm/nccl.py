"""NCCL weight transfer from the trainer to vLLM servers, with vLLM's own backend.

Rank 0 broadcasts to all workers of all servers, a few parameters at a time; HTTP carries only names
and shapes. Not secure: the group is formed over an unauthenticated port with pickled messages, and
NCCL traffic is neither authenticated nor encrypted. Use it only on a trusted network.
"""

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed.weight_transfer import ParamMeta, WeightSource, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from loptune.errors import EngineError, UserError, described
from trainer.parallel.interface import local_address_for
from trainer.policy.adapters import base_parameters
from trainer.rollouts.vllm.client import VllmClient, on_all
from trainer.rollouts.vllm.sync import as_published, named_weights


@dataclass
class NcclTransfer:
    """Broadcast of weights in ``dtype`` from rank 0 to the servers' GPUs."""

    servers: Sequence[VllmClient]
    rank: int
    dtype: torch.dtype
    _sender: Any = field(default=None, init=False)  # vLLM's sender, while it is connected

    def send(self, model: nn.Module) -> None:
        """Send all weights to paused servers. The update stays open.

        Raises:
            EngineError: the group cannot be formed, or a transfer failed.
        """
        sender = self._sender
        self._sender = None  # a transfer that fails leaves no usable group
        try:
            if sender is None:
                sender = self._connect(model)
            # the transfer reads the parameters on its own CUDA streams
            torch.accelerator.synchronize()
            sender.send_weights()
        except UserError:
            raise
        except Exception as error:
            raise EngineError(
                f"NCCL weight transfer to the vLLM servers failed: {described(error)}",
                "rollout.vllm.server_weight_transfer",
                "restart the servers, because their workers may wait in NCCL forever; set "
                "NCCL_DEBUG=INFO for servers and run, and check the servers' logs, or use "
                "server_weight_transfer=http for server and run",
                code="nccl-failed",
            ) from error
        self._sender = sender

    def _connect(self, model: nn.Module) -> Any:
        sizes = [server.world_size() for server in self.servers] if self.rank == 0 else []
        address, port = _rendezvous([server.url for server in self.servers])
        return WeightTransferTrainerFactory.trainer_init(
            NCCLTrainerInitInfo(address, port, 1 + sum(sizes), rank=self.rank),
            client=_AllServers(self.servers, sizes),
            source=PolicyWeights(model, self.dtype),
        )


def _described(source: "PolicyWeights") -> list[Any]:
    """Return names, dtypes and full shapes of a policy's weights, without gathering."""
    described = []
    for base in base_parameters(source.model):
        shape = getattr(base.parameter, "ds_shape", base.parameter.shape)
        placeholder = torch.empty(shape, device="meta")
        for name, tensor in as_published(source.model, base.name, placeholder):
            described.append(ParamMeta(name, source.dtype, tuple(tensor.shape)))
    return described


@dataclass
class PolicyWeights(WeightSource):  # type: ignore[misc]
    """Source of the policy's full parameters in the servers' dtype, one at a time."""

    model: nn.Module
    dtype: torch.dtype

    # vLLM up to 0.32 calls a method and `iter`; vLLM 0.33 and later read a property and call
    # `iter_full`
    metadata = cached_property(_described) if hasattr(WeightSource, "iter_full") else _described

    def iter_full(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each parameter with its name."""
        for name, weight in named_weights(self.model):
            yield name, weight.to(self.dtype)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self.iter_full()


class _AllServers:
    """vLLM's client protocol for several servers, whose workers get consecutive ranks."""

    def __init__(self, servers: Sequence[VllmClient], sizes: Sequence[int]) -> None:
        self._servers = servers
        self._offsets = list(accumulate(sizes, initial=0))[:-1]

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Connect all servers; returns when all workers have joined."""
        first = init_info["rank_offset"]
        infos = [{**init_info, "rank_offset": first + offset} for offset in self._offsets]
        on_all(VllmClient.connect, self._servers, infos)

    def start_weight_update(self) -> None:
        """Open the update on all servers."""
        on_all(VllmClient.start_update, self._servers)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Make all servers receive the weights, and wait until they have them."""
        on_all(VllmClient.update, self._servers, [update_info] * len(self._servers))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Do nothing: the engine sets the weight version when it ends the update."""


def _rendezvous(urls: Sequence[str]) -> tuple[str, int]:
    """Return a local address that all servers can reach, and a free port."""
    addresses = [local_address_for(url) for url in urls]
    address = next((a for a in addresses if not a.startswith("127.")), addresses[0])
    with socket.socket() as free:
        free.bind((address, 0))
        return address, free.getsockname()[1]
