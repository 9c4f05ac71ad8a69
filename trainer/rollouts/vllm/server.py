"""Rollout engine that uses vLLM servers over HTTP.

`trainer serve` starts such a server. Requests and responses are token ids. Weights are sent through
vLLM's weight-transfer routes, received by `trainer.rollouts.vllm.receiver` or vLLM's NCCL backend.
"""

import asyncio
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
from torch import nn

from loptune.errors import ConfigError
from trainer.config.rollout import VllmConfig
from trainer.rollouts.engine import Request, RequestEngine, SamplingParams
from trainer.rollouts.vllm.client import VllmClient, on_all, sampling_session
from trainer.rollouts.vllm.http_transfer import HttpTransfer
from trainer.rollouts.vllm.setup import INSTALL, vllm_installed
from trainer.rollouts.vllm.sync import check_synced_weights
from trainer.types import Completion

if TYPE_CHECKING:
    from trainer.rollouts.vllm.nccl import NcclTransfer


class VllmServerEngine(RequestEngine):
    """Engine backed by external servers; rank r samples from server ``r % number of servers``.

    A server serves the weights of one run at a time. Each sync sets a unique weight version, which
    the server returns with every completion. A completion from other weights (another run, or a
    restarted server) raises an error, so it is never trained on. ``max_model_len`` is the longest
    request. Policy and servers compute in ``dtype`` (float32 or bfloat16) and are compared on the
    prompt ``probe_ids``.

    Raises:
        MissingError: a server does not answer in time.
        EngineError: a server was not started with `trainer serve`.
        ConfigError: a server's context is too short, or NCCL is not available.
    """

    def __init__(
        self, settings: VllmConfig, max_model_len: int, dtype: str, probe_ids: Sequence[int] = ()
    ) -> None:
        rank = dist.get_rank() if dist.is_initialized() else 0
        self._servers = [VllmClient(url) for url in settings.server_base_urls]
        self._sync_targets = self._servers if rank == 0 else []
        self.client = self._servers[rank % len(self._servers)]
        self.dtype = dtype
        name = [uuid.uuid4().hex]
        if dist.is_initialized():
            dist.broadcast_object_list(name)
        self._run = name[0]
        self._n_syncs = 0
        self._checked = False
        self._check_ids = probe_ids
        transfer = settings.server_weight_transfer
        for server in self._sync_targets or [self.client]:
            server.wait(settings.server_timeout_s)
            server.check(max_model_len, dtype, transfer)
        self._transfer = _transfer(transfer, self._servers, rank, getattr(torch, dtype))

    @torch.no_grad()
    def sync_weights(self, policy_model: nn.Module) -> None:
        """Push the policy's weights to all servers. Collective.

        Raises:
            EngineError: a server rejected the weights, or, on the first sync, its log-probabilities
                differ from the policy's.
        """
        self._n_syncs += 1
        try:
            on_all(VllmClient.pause_for_update, self._sync_targets)
            self._transfer.send(policy_model)
            on_all(lambda server: server.finish_update(self._name()), self._sync_targets)
        except BaseException:
            on_all(VllmClient.abort_update, self._sync_targets)
            raise
        if dist.is_initialized():
            dist.barrier()  # no rank samples before the servers have the weights
        if not self._checked:
            difference = check_synced_weights(
                self.client.prompt_logprobs, policy_model, self.dtype, self._check_ids
            )
            self.news = {"rollout/sync_difference": difference}
            self._checked = True

    def _name(self) -> str:
        return f"{self._run}-{self._n_syncs}"

    def complete(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Return one completion per request, in order.

        Raises:
            EngineError: a request failed, or was served with weights other than the last synced
                ones.
        """
        assert self._checked, "the servers have no weights: call sync_weights() first"
        call = uuid.uuid4().hex
        request_ids = [f"{call}-{place}" for place in range(len(requests))]
        try:
            return asyncio.run(self._complete(requests, request_ids, params))
        except BaseException:
            # including requests that the server has queued but not started
            self.client.abort(request_ids)
            raise

    async def _complete(
        self, requests: Sequence[Request], request_ids: Sequence[str], params: SamplingParams
    ) -> list[Completion]:
        """Run all requests concurrently and return completions in order. The first error cancels
        the other requests.
        """
        name = self._name()
        async with sampling_session() as session:
            answers = [
                asyncio.ensure_future(
                    self.client.complete(session, prompt, seed, params, name, request_id)
                )
                for (prompt, seed), request_id in zip(requests, request_ids, strict=True)
            ]
            try:
                return await asyncio.gather(*answers)
            finally:
                for answer in answers:
                    answer.cancel()
                await asyncio.gather(*answers, return_exceptions=True)


def _transfer(
    kind: Literal["http", "nccl"], servers: Sequence[VllmClient], rank: int, dtype: torch.dtype
) -> "HttpTransfer | NcclTransfer":
    if kind == "http":
        return HttpTransfer(servers, rank, dtype)
    if not (vllm_installed() and torch.cuda.is_available()):
        raise ConfigError(
            "server_weight_transfer=nccl needs GPUs and vLLM on the trainer's machine",
            "rollout.vllm.server_weight_transfer",
            f"use http, or install vLLM on a GPU machine: {INSTALL}",
            code="nccl-without-gpus",
        )
    from trainer.rollouts.vllm.nccl import NcclTransfer

    return NcclTransfer(servers, rank, dtype)
