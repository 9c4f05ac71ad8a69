"""What every rollout engine takes and gives back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import nn

from trainer.types import FinishReason


@dataclass(frozen=True)
class SamplingParams:
    """How completions are sampled.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 keep every token.
    """

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_new_tokens: int = 4096
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sample:
    """One completion, stop token included.

    ``logprobs`` are those of the distribution the tokens were drawn from: of ``log_softmax(logits / T)``,
    renormalised over the kept tokens where top_k, top_p or min_p drop some; of ``log_softmax(logits)`` where
    the completion is greedy.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason


@dataclass(frozen=True)
class EngineRun:
    """What an engine is told of the run it samples for."""

    check_ids: tuple[int, ...] = ()  # a prompt on which engine and policy are compared; any tokens if empty
    log_file: Path | None = None  # of the engine's own messages, which go nowhere if None
    is_one_of_many: bool = False  # another run may follow in this process and take over the engine
    on_finished: Callable[[int], None] = lambda count: None  # told how many completions more are sampled


NO_RUN = EngineRun()


class CompletionSource(Protocol):
    """Gives completions."""

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], params: SamplingParams
    ) -> list[list[Sample]]:
        """Sample ``len(seeds[p])`` completions of ``prompts[p]``, completion g seeded with ``seeds[p][g]``."""


class RolloutEngine(CompletionSource, Protocol):
    """Samples completions from the current policy."""

    def sync_weights(self, policy_model: nn.Module) -> None:
        """Copy the policy's current weights."""

    def sleep(self) -> None:
        """Free device memory while the policy trains."""

    def wake(self) -> None:
        """Undo ``sleep``; weights may have to be synchronised again."""

    def metrics(self) -> dict[str, float]:
        """What there is to tell since the last call, by names of declared metrics."""

    def close(self) -> None:
        """Free everything, and end a ``generate`` that is under way in another thread."""
