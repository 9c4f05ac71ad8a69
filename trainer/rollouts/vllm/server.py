"""Rollouts from vLLM servers on other GPUs or nodes, reached over HTTP.

`trainer serve` starts such a server. It is asked in tokens, not in text, and takes its weights
through vLLM's weight-transfer routes (`trainer.rollouts.vllm.receiver` and vLLM's NCCL backend are
the receiving sides).
"""

import asyncio
import base64
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
from safetensors.torch import save
from torch import Tensor, nn

from trainer.config.rollout import VllmConfig
from trainer.errors import ConfigError
from trainer.rollouts.engine import Request, RolloutEngine, SamplingParams
from trainer.rollouts.vllm.client import VllmServer, sampling_session
from trainer.rollouts.vllm.setup import INSTALL, transfer_kind, vllm_installed
from trainer.rollouts.vllm.sync import check_weights_arrived, named_weights
from trainer.types import Completion

if TYPE_CHECKING:
    from trainer.rollouts.vllm.nccl import NcclTransfer

CHUNK_BYTES = 64 << 20  # of weights in one request


class VllmServerEngine(RolloutEngine):
    """Engines in processes of their own; rank r samples from the server ``r % number of servers``.

    A server holds the weights of one run at a time. Each synchronization gives them a name of their
    own, and the server says with every completion under which name it sampled: a completion of
    other weights, those of another run or of a server that was restarted, is an error and never
    trained on. Requests may need ``max_model_len`` tokens; policy and servers compute in ``dtype``,
    float32 or bfloat16, and are compared on the prompt ``check_ids``.

    Raises:
        MissingError: a server does not answer in time.
        EngineError: a server was started in another way than `trainer serve` does.
        ConfigError: a server's context is too short, or NCCL is asked for where it cannot be.
    """

    def __init__(
        self, settings: VllmConfig, max_model_len: int, dtype: str, check_ids: Sequence[int] = ()
    ) -> None:
        rank = dist.get_rank() if dist.is_initialized() else 0
        self._servers = [VllmServer(url) for url in settings.server_base_urls]
        self._pushed_to = self._servers if rank == 0 else []
        self._own = self._servers[rank % len(self._servers)]
        self.dtype = dtype
        name = [uuid.uuid4().hex]
        if dist.is_initialized():
            dist.broadcast_object_list(name)
        self._run = name[0]
        self._synchronizations = 0
        self._checked = False
        self._check_ids = check_ids
        transfer = transfer_kind(settings, torch.cuda.is_available() and vllm_installed())
        for server in self._pushed_to or [self._own]:
            server.wait(settings.server_timeout_s)
            server.check(max_model_len, dtype, transfer)
        self._transfer = _transfer(transfer, self._servers, rank, getattr(torch, dtype))

    @torch.no_grad()
    def sync_weights(self, policy_model: nn.Module) -> None:
        """Push the policy's weights to all servers; every rank at the same time.

        Raises:
            EngineError: a server refused them, or disagrees with the policy about a short text
                afterwards.
        """
        self._synchronizations += 1
        try:
            for server in self._pushed_to:
                server.begin_update()
            self._transfer.send(policy_model)
            for server in self._pushed_to:
                server.end_update(self._name())
        except BaseException:
            for server in self._pushed_to:
                server.abandon_update()
            raise
        if dist.is_initialized():
            dist.barrier()  # no rank samples before the servers have the weights
        if not self._checked:
            difference = check_weights_arrived(
                self._own.prompt_logprobs, policy_model, self.dtype, self._check_ids
            )
            self.news = {"rollout/sync_difference": difference}
            self._checked = True

    def _name(self) -> str:
        return f"{self._run}-{self._synchronizations}"

    def complete(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Return one completion per request, in order.

        Raises:
            EngineError: a request failed, or was answered with other weights than the last
                synchronized.
        """
        assert self._checked, "the servers have no weights: synchronize first"
        call = uuid.uuid4().hex
        request_ids = [f"{call}-{place}" for place in range(len(requests))]
        try:
            return asyncio.run(self._complete(requests, request_ids, params))
        except BaseException:
            self._own.abort(request_ids)  # those that the server has read but not yet begun
            raise

    async def _complete(
        self, requests: Sequence[Request], request_ids: Sequence[str], params: SamplingParams
    ) -> list[Completion]:
        """Return all completions at once, in order; the first error cancels the others."""
        name = self._name()
        async with sampling_session() as session:
            answers = [
                asyncio.ensure_future(
                    self._own.complete(session, prompt, seed, params, name, request_id)
                )
                for (prompt, seed), request_id in zip(requests, request_ids, strict=True)
            ]
            try:
                return await asyncio.gather(*answers)
            finally:
                for answer in answers:
                    answer.cancel()
                await asyncio.gather(*answers, return_exceptions=True)


class HttpTransfer:
    """Rank 0 sends weights as safetensors in the bodies of requests, `CHUNK_BYTES` at a time."""

    def __init__(self, servers: Sequence[VllmServer], rank: int, dtype: torch.dtype) -> None:
        self._servers = servers if rank == 0 else ()
        self._dtype = dtype

    def send(self, model: nn.Module) -> None:
        """Send all weights; the update stays open."""
        for server in self._servers:
            server.start_update()
        for weights in _chunks(model, self._dtype):  # a collective under ZeRO-3
            if self._servers:
                update_info = {"safetensors": base64.b64encode(save(weights)).decode()}
                for server in self._servers:
                    server.update(update_info)


def _transfer(
    kind: Literal["http", "nccl"], servers: Sequence[VllmServer], rank: int, dtype: torch.dtype
) -> "HttpTransfer | NcclTransfer":
    if kind == "http":
        return HttpTransfer(servers, rank, dtype)
    if not (vllm_installed() and torch.cuda.is_available()):
        raise ConfigError(
            "weights go by NCCL from GPU to GPU, and by vLLM's own code on both sides",
            "rollout.vllm.server_weight_transfer",
            f"use http, or a machine with GPUs and vLLM: {INSTALL}",
        )
    from trainer.rollouts.vllm.nccl import NcclTransfer

    return NcclTransfer(servers, rank, dtype)


def _chunks(model: nn.Module, dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    """Yield the policy's weights as the servers compute with them, some at a time."""
    chunk: dict[str, Tensor] = {}
    size = 0
    for name, weight in named_weights(model):
        chunk[name] = weight.to(dtype).cpu().contiguous()
        size += chunk[name].nbytes
        if size >= CHUNK_BYTES:
            yield chunk
            chunk = {}
            size = 0
    if chunk:
        yield chunk
