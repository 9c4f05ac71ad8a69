"""The ranks of one training run: who they are, and the few things they do together."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Parallel:
    """One process that trains alone."""

    rank = 0
    world_size = 1

    @property
    def is_main(self) -> bool:
        """Whether this rank writes files, metrics and progress."""
        return self.rank == 0

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        """Wrap model and optimizer for this kind of parallelism."""
        return model, optimizer

    def sum(self, tensor: Tensor) -> Tensor:
        """The tensor added over all ranks."""
        return tensor

    def gather(self, items: list[Any]) -> list[Any]:
        """The items of all ranks, on every rank, in the order of the prompts they belong to."""
        return items

    def backward(self, loss: Tensor, is_last_microbatch: bool) -> None:
        """Add the gradient of a loss that is already normalised over all ranks."""
        loss.backward()

    def step(self, model: nn.Module, optimizer: Any, max_grad_norm: float) -> float:
        """Clip the gradient, take one optimizer step, and return the gradient norm before clipping."""
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm))
        if norm == norm and norm != float("inf"):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return norm

    @contextmanager
    def full_parameters(self, model: nn.Module) -> Iterator[None]:
        """A context in which every parameter is whole on this rank."""
        yield

    def barrier(self) -> None:
        """Wait for all ranks."""
