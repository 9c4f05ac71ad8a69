"""Inputs and outputs of every rollout engine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from trainer.types import Completion

Request = tuple[tuple[int, ...], int]  # tokens of a prompt, and the seed of a completion
IntegerRows = Sequence[Sequence[int]]  # of each prompt: its tokens, or its completions' seeds


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
class EngineRun:
    """The run an engine samples for."""

    # a prompt on which engine and policy are compared; any tokens if empty
    check_ids: tuple[int, ...] = ()
    log_file: Path | None = None  # of the engine's own messages, which go nowhere if None
    is_one_of_many: bool = False  # another run may follow in this process and take over the engine
    # told how many completions more are sampled
    on_finished: Callable[[int], None] = lambda count: None


NO_RUN = EngineRun()

# Options, under vLLM's names, of a request for the log-probabilities of its prompt.
PROMPT_OPTIONS = {
    "max_tokens": 1,
    "temperature": 0,
    "prompt_logprobs": 0,
    "detokenize": False,
    "ignore_eos": True,
}


def sampling_options(params: SamplingParams, seed: int) -> dict[str, Any]:
    """Return a completion's options under vLLM's names."""
    return {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "max_tokens": params.max_new_tokens,
        "stop_token_ids": list(params.stop_token_ids),
        "ignore_eos": True,  # the caller's stop tokens are the only ones
        "seed": seed,
        "logprobs": 0,  # of the sampled token
        "detokenize": False,
    }


class RolloutEngine:
    """Samples completions from the current policy; what an engine does not define it need
    not do.
    """

    # metrics since the last call of `metrics`, by their declared names
    news: Mapping[str, float] = {}

    def generate(
        self, prompts: IntegerRows, seeds: IntegerRows, params: SamplingParams
    ) -> list[list[Completion]]:
        """Sample ``len(seeds[p])`` completions of ``prompts[p]``, completion g seeded with
        ``seeds[p][g]``.
        """
        requests = [
            (tuple(prompt), seed)
            for prompt, row in zip(prompts, seeds, strict=True)
            for seed in row
        ]
        completions = iter(self.complete(requests, params))
        return [[next(completions) for _ in row] for row in seeds]

    def complete(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Return one completion per request, in order."""
        raise NotImplementedError

    def sync_weights(self, policy_model: nn.Module) -> None:
        """Copy the policy's current weights."""

    def sleep(self) -> None:
        """Free device memory while the policy trains."""

    def wake(self) -> None:
        """Undo ``sleep``; weights may have to be synchronized again."""

    def metrics(self) -> dict[str, float]:
        """Return metrics since the last call, by their declared names."""
        news = dict(self.news)
        self.news = {}
        return news

    def close(self) -> None:
        """Free everything."""
