"""The interfaces of rollout engines."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from trainer.rollouts.stop_strings import StopStrings
from trainer.types import Completion

Request = tuple[tuple[int, ...], int]  # (prompt token ids, seed)
IntegerRows = Sequence[Sequence[int]]  # per prompt: its token ids, or its completions' seeds


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters.

    ``temperature`` 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 keep every token.
    """

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_new_tokens: int = 4096
    stop_token_ids: tuple[int, ...] = ()
    # an engine may keep sampling after a stop string: `sample_completions` truncates its
    # completions
    stop: StopStrings | None = None
    # ids of the model that its tokenizer does not define; never sampled
    excluded_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class EngineContext:
    """The information that an engine needs about its run."""

    # prompt used to compare engine and policy after the first sync; synthetic tokens if empty
    probe_ids: tuple[int, ...] = ()
    log_file: Path | None = None  # log file for the engine's messages; None discards them
    shares_process: bool = False  # whether a later run in this process may reuse the engine
    # callback with the number of newly finished completions
    on_finished: Callable[[int], None] = lambda count: None


NO_CONTEXT = EngineContext()

# vLLM sampling options that return prompt log-probabilities
PROMPT_OPTIONS = {
    "max_tokens": 1,
    "temperature": 0,
    "prompt_logprobs": 0,
    "detokenize": False,
    "ignore_eos": True,
}


# vLLM's runner for GPUs takes at most this many entries of `logit_bias` and allowed ids per
# request, which is too few to list a vocabulary
MAX_EXCLUDED = 1024
_EXCLUDED_BIAS = -1e9  # JSON has no infinity; exp(-1e9) is 0 in float32 at any temperature


def sampling_options(params: SamplingParams, seed: int) -> dict[str, Any]:
    """Return vLLM's sampling options for one completion."""
    bias = dict.fromkeys(params.excluded_token_ids, _EXCLUDED_BIAS)
    return {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "max_tokens": params.max_new_tokens,
        "stop_token_ids": list(params.stop_token_ids),
        # the engine has no tokenizer: every id that ends a completion is in stop_token_ids
        "ignore_eos": True,
        "logit_bias": bias or None,
        "seed": seed,
        "logprobs": 0,  # log-probability of the sampled token only
        "detokenize": False,
    }


class Sampler(Protocol):
    """The sampling part of an engine: enough for an evaluation."""

    def generate(
        self, prompts: IntegerRows, seeds: IntegerRows, params: SamplingParams
    ) -> list[list[Completion]]:
        """Sample ``len(seeds[p])`` completions for ``prompts[p]``; completion g uses seed
        ``seeds[p][g]``.
        """
        ...


class RolloutEngine(Sampler, Protocol):
    """A sampler that follows the policy during training."""

    def sync_weights(self, policy_model: nn.Module) -> None:
        """Copy the policy's current weights to the engine."""
        ...

    def sleep(self) -> None:
        """Free device memory during training."""
        ...

    def wake(self) -> None:
        """Reallocate the memory that `sleep` freed. Weights may have to be synced again."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return and clear the metrics collected since the last call."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class RequestEngine(ABC):
    """Base class of rollout engines that answer requests, one prompt and seed each. By default
    `sleep`, `wake` and `close` do nothing.
    """

    # pending metrics, returned and cleared by `metrics`
    news: Mapping[str, float] = {}

    @abstractmethod
    def complete(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Return one completion per request, in order."""

    @abstractmethod
    def sync_weights(self, policy_model: nn.Module) -> None:
        """Copy the policy's current weights to the engine."""

    def generate(
        self, prompts: IntegerRows, seeds: IntegerRows, params: SamplingParams
    ) -> list[list[Completion]]:
        """Sample ``len(seeds[p])`` completions for ``prompts[p]``; completion g uses seed
        ``seeds[p][g]``.
        """
        requests = []
        for prompt, prompt_seeds in zip(prompts, seeds, strict=True):
            requests += [(tuple(prompt), seed) for seed in prompt_seeds]
        completions = iter(self.complete(requests, params))
        return [[next(completions) for _ in prompt_seeds] for prompt_seeds in seeds]

    def sleep(self) -> None:  # noqa: B027
        """Free device memory during training."""

    def wake(self) -> None:  # noqa: B027
        """Reallocate the memory that `sleep` freed. Weights may have to be synced again."""

    def close(self) -> None:  # noqa: B027
        """Release all resources."""

    def metrics(self) -> dict[str, float]:
        """Return and clear the metrics collected since the last call."""
        new_metrics = dict(self.news)
        self.news = {}
        return new_metrics
