"""HTTP transfer of weights from rank 0 to vLLM servers, as safetensors, one chunk per request.

Rank 0 sends to all servers in parallel, several requests at a time to each. All ranks synchronize
after each chunk, so `parallel.timeout_s` limits the time since the last chunk arrived, not the
transfer of the whole model.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist
from safetensors.torch import save
from torch import Tensor, nn

from trainer.rollouts.vllm.client import VllmClient, on_all
from trainer.rollouts.vllm.sync import named_weights

# a request is sent once it has at least this many bytes of weights
CHUNK_BYTES = 64 << 20
# A server receives the next requests while it loads the weights of the current one. Trainer and
# server keep this many chunks in host memory.
REQUESTS_IN_FLIGHT = 4

Chunk = dict[str, Tensor]


class HttpTransfer:
    """Transfer of weights in ``dtype`` from rank 0; other ranks only take part in collectives."""

    def __init__(self, servers: Sequence[VllmClient], rank: int, dtype: torch.dtype) -> None:
        self._servers = servers if rank == 0 else ()
        self._dtype = dtype

    def send(self, model: nn.Module) -> None:
        """Send all weights; the update stays open. Collective.

        Raises:
            EngineError: a server rejected weights or was lost.
        """
        on_all(VllmClient.start_update, self._servers)
        senders = [
            ThreadPoolExecutor(REQUESTS_IN_FLIGHT, thread_name_prefix="weights")
            for _ in self._servers
        ]
        in_flight: deque[list[Future[None]]] = deque()
        try:
            for chunk in _chunks(model, self._dtype):  # a collective under ZeRO-3
                if len(in_flight) == REQUESTS_IN_FLIGHT:
                    _await_arrival(in_flight.popleft())
                in_flight.append(self._post(chunk, senders))
            while in_flight:
                _await_arrival(in_flight.popleft())
        finally:
            for sender in senders:
                sender.shutdown(cancel_futures=True)

    def _post(self, chunk: Chunk, senders: Sequence[ThreadPoolExecutor]) -> list[Future[None]]:
        """Start a request to each server; none on ranks that do not send."""
        if not self._servers:
            return []
        body = save(
            {name: weight.to(self._dtype).cpu().contiguous() for name, weight in chunk.items()}
        )
        return [
            sender.submit(server.upload, body)
            for sender, server in zip(senders, self._servers, strict=True)
        ]


def _await_arrival(requests: Sequence[Future[None]]) -> None:
    """Wait until all servers have loaded a chunk. All ranks wait together, which restarts the
    timeout of their collectives.
    """
    for request in requests:
        request.result()
    if dist.is_initialized():
        dist.barrier()


def _chunks(model: nn.Module, dtype: torch.dtype) -> Iterator[Chunk]:
    """Yield all weights in chunks of at least `CHUNK_BYTES` in ``dtype``, except the last one; the
    chunks are the same on every rank.
    """
    chunk: Chunk = {}
    size = 0
    for name, weight in named_weights(model):
        chunk[name] = weight
        size += weight.numel() * dtype.itemsize
        if size >= CHUNK_BYTES:
            yield chunk
            chunk = {}
            size = 0
    if chunk:
        yield chunk
