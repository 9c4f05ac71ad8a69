"""Rollout engine on the policy's own Hugging Face model.

A group shares one prefill, and finished rows are removed from the batch. transformers' `generate`
is not used, because its overhead per token exceeds a small model's forward pass.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedModel,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from trainer.planning.memory import CPU_BATCH_TOKENS, cache_bytes_per_position
from trainer.rollouts.decoding import CachedBatch, SharedPrefixBatch, fastest_batch, prefill_prompts
from trainer.rollouts.engine import IntegerRows, SamplingParams
from trainer.rollouts.stop_strings import StopStrings
from trainer.types import Completion

# compact the batch when this fraction of rows has finished: copying the cache costs about one
# decoding step
_COMPACT_FRACTION = 1 / 8
# fraction of free GPU memory for the KV cache; the rest is for prefill activations
_MEMORY_FRACTION = 0.8
_BYTES_PER_LOGIT = 32  # bytes per row and vocabulary entry needed to sample a token


@dataclass(eq=False)
class TransformersEngine:
    """Engine that samples from the policy's own module, so weights never need syncing.

    Args:
        model: a Hugging Face causal language model with a KV cache.
        pad_token_id: any valid token id; padding is masked out.
        compute_dtype: autocast dtype if the model is stored in float32.
        full_weights: returns a context that gathers the full parameters. If that is a collective,
            so is ``generate``.
        on_finished: callback with the number of newly finished completions.
    """

    model: PreTrainedModel
    _: KW_ONLY
    pad_token_id: int
    compute_dtype: torch.dtype = torch.float32
    full_weights: Callable[[], AbstractContextManager[None]] = nullcontext
    on_finished: Callable[[int], None] = lambda count: None

    def __post_init__(self) -> None:
        self._batch_class: type[SharedPrefixBatch | CachedBatch] | None = None

    def generate(
        self, prompts: IntegerRows, seeds: IntegerRows, params: SamplingParams
    ) -> list[list[Completion]]:
        """Sample ``len(seeds[p])`` completions of each prompt, in the order of ``prompts`` and
        ``seeds``.

        A completion depends only on its prompt, its seed and the weights, not on the batch it was
        sampled in (up to rounding). The global random state is not used.
        """
        samples: dict[tuple[int, int], Completion] = {}
        longest = max(map(len, prompts), default=0)
        with self.full_weights(), evaluating(self.model), torch.no_grad(), self._autocast():
            if self._batch_class is None:
                self._batch_class = fastest_batch(self.model, self.pad_token_id)
            budget = self.token_budget(longest + params.max_new_tokens)
            for rows in _split(prompts, seeds, params.max_new_tokens, budget):
                samples.update(zip(rows, self._decode(rows, prompts, seeds, params), strict=True))
        return [[samples[p, g] for g in range(len(row_seeds))] for p, row_seeds in enumerate(seeds)]

    def sync_weights(self, policy_model: nn.Module) -> None:
        """Do nothing: the engine samples from the policy itself."""

    def sleep(self) -> None:
        """Do nothing: the engine has no memory of its own."""

    def wake(self) -> None:
        """Do nothing."""

    def metrics(self) -> dict[str, float]:
        """Return no metrics."""
        return {}

    def close(self) -> None:
        """Do nothing."""

    def _autocast(self) -> AbstractContextManager[Any]:
        is_lower = self.model.dtype == torch.float32 != self.compute_dtype
        return torch.autocast(self.model.device.type, self.compute_dtype, enabled=is_lower)

    def token_budget(self, row_length: int) -> int:
        """Return the number of KV cache positions that fit in free GPU memory, for rows of
        ``row_length`` tokens; a constant on other devices.
        """
        device = self.model.device
        if device.type != "cuda":
            return CPU_BATCH_TOKENS
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(device)
        return int(
            _MEMORY_FRACTION
            * free
            / bytes_per_position(self.model.config, self.model.dtype, row_length)
        )

    def _decode(
        self,
        places: Sequence[tuple[int, int]],
        prompts: IntegerRows,
        seeds: IntegerRows,
        params: SamplingParams,
    ) -> list[Completion]:
        """Decode one batch of (prompt, completion) indices with one prefill per prompt."""
        unique = list(dict.fromkeys(p for p, _ in places))
        prefill = prefill_prompts(self.model, [prompts[p] for p in unique], self.pad_token_id)
        device = prefill.logits.device
        prompt_of_row = torch.tensor([unique.index(p) for p, _ in places], device=device)
        assert self._batch_class is not None
        batch = self._batch_class(self.model, prefill, prompt_of_row, params.max_new_tokens)
        uniforms = row_uniforms([seeds[p][g] for p, g in places], params.max_new_tokens).to(device)
        stop_ids = torch.tensor(params.stop_token_ids, dtype=torch.int64, device=device)
        # output row of each row in the shrinking batch
        rows = torch.arange(len(places), device=device)
        finished = torch.zeros(len(places), dtype=torch.bool, device=device)
        prompt_of_place = [prompts[p] for p, _ in places]
        # completion length at a row's stop string
        ends = torch.full((len(places),), params.max_new_tokens, dtype=torch.int64, device=device)
        tokens = torch.full(
            (len(places), params.max_new_tokens), -1, dtype=torch.int64, device=device
        )
        logprobs = torch.zeros(tokens.shape, device=device)
        reported = 0
        for position in range(params.max_new_tokens):
            chosen, chosen_logprobs = sample_tokens(batch.logits, uniforms[:, position], params)
            tokens[rows, position], logprobs[rows, position] = chosen, chosen_logprobs
            finished |= (chosen[:, None] == stop_ids).any(dim=-1)
            if params.stop is not None:
                running = (~finished).nonzero()[:, 0]
                so_far = tokens[rows[running], : position + 1]
                stopped = _at_stop_string(
                    params.stop, so_far, [prompt_of_place[row] for row in rows[running].tolist()]
                )
                finished[running] = stopped.to(device)
                ends[rows[running[finished[running]]]] = position + 1
            n_finished = int(finished.sum())
            done = len(places) - len(rows) + n_finished
            if done > reported:
                self.on_finished(done - reported)
                reported = done
            if n_finished == len(rows) or position + 1 == params.max_new_tokens:
                break
            if n_finished >= max(1, _COMPACT_FRACTION * len(rows)):
                keep = (~finished).nonzero()[:, 0]
                batch.select(keep)
                rows = rows[keep]
                chosen = chosen[keep]
                finished = finished[keep]
                uniforms = uniforms[keep]
            batch.step(chosen)
        self.on_finished(len(places) - reported)
        return _samples(tokens.cpu(), logprobs.cpu(), stop_ids.cpu(), ends.cpu())


def _at_stop_string(stop: StopStrings, tokens: Tensor, prompts: IntegerRows) -> Tensor:
    """Return which rows of ``tokens`` [R, t] end with a token that completes a stop string, [R]
    bool.
    """
    ended = []
    for row, prompt in zip(tokens.tolist(), prompts, strict=True):
        ended.append(stop.ends(row, prompt))
    return torch.tensor(ended, dtype=torch.bool)


def _samples(tokens: Tensor, logprobs: Tensor, stop_ids: Tensor, ends: Tensor) -> list[Completion]:
    """Return the rows as completions, each truncated after its first stop token, or at its stop
    string: ``ends`` [R] has the lengths.
    """
    tokens = tokens.masked_fill(torch.arange(tokens.shape[1]) >= ends[:, None], -1)
    stops = torch.isin(tokens, stop_ids)
    lengths = torch.where(stops.any(dim=-1), stops.int().argmax(dim=-1) + 1, ends)
    return [
        Completion(
            tuple(row[:length]),
            tuple(row_logprobs[:length]),
            "stop" if stopped or length < len(row) else "length",
        )
        for row, row_logprobs, length, stopped in zip(
            tokens.tolist(),
            logprobs.tolist(),
            lengths.tolist(),
            stops.any(dim=-1).tolist(),
            strict=True,
        )
    ]


def bytes_per_position(config: Any, dtype: torch.dtype, row_length: int) -> float:
    """Return the sampling memory per position [bytes]: keys, values, and the row's logits spread
    over ``row_length``.

    The KV cache of a float32 model stays float32 under autocast.
    """
    text = config.get_text_config()
    cache = cache_bytes_per_position(text.to_dict(), dtype.itemsize)
    # sampling a token needs logits, probabilities and float64 cumulative sums
    return float(cache + text.vocab_size * _BYTES_PER_LOGIT / row_length)


def _split(
    prompts: IntegerRows, seeds: IntegerRows, max_new_tokens: int, budget: int
) -> Iterator[list[tuple[int, int]]]:
    """Yield batches of (prompt, completion) indices within the token budget, sorted by prompt
    length.
    """
    batch: list[tuple[int, int]] = []
    for p in sorted(range(len(prompts)), key=lambda p: len(prompts[p])):
        for g in range(len(seeds[p])):
            if batch and (len(batch) + 1) * (len(prompts[p]) + max_new_tokens) > budget:
                yield batch
                batch = []
            batch.append((p, g))
    if batch:
        yield batch


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch to eval mode and restore every submodule's mode on exit."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def row_uniforms(seeds: Sequence[int], length: int) -> Tensor:
    """Return uniform numbers in [0, 1), [R, length], that depend only on each row's seed.

    numpy's generator uses all bits of a seed. A CPU ``torch.Generator`` only uses the lowest 32, so
    seeds built as ``step << 32 | row`` would repeat in every step.
    """
    rows = [np.random.default_rng(seed % 2**64).random(length) for seed in seeds]
    return torch.from_numpy(np.stack(rows))


def sample_tokens(
    logits: Tensor, uniforms: Tensor, params: SamplingParams
) -> tuple[Tensor, Tensor]:
    """Sample one token per row by inverse transform sampling.

    Args:
        logits: [R, V], any floating dtype; the arithmetic is float32, the cumulative sum float64.
        uniforms: [R] float64 in [0, 1).
        params: temperature, truncation and excluded tokens.

    Returns:
        Token ids [R] and their log-probabilities [R] (float32) as defined by `Completion`.
        Rows with a NaN or an infinite positive logit, and rows of which all logits are -inf, get a
        NaN log-probability. A single logit of -inf excludes its token.
    """
    logits = logits.float()
    if params.excluded_token_ids:
        excluded = torch.tensor(params.excluded_token_ids, device=logits.device)
        logits = logits.index_fill(-1, excluded, -torch.inf)
    if params.temperature == 0:
        logprobs = torch.log_softmax(logits, dim=-1)
        tokens = logits.argmax(dim=-1)
    else:
        logprobs = torch.log_softmax(logits / params.temperature, dim=-1)
        if processors := truncation_processors(params):
            logprobs = torch.log_softmax(processors(None, logprobs), dim=-1)
        cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
        threshold = uniforms[:, None] * cumulative[:, -1:]
        # The first token whose cumulative probability exceeds the threshold always has a
        # probability above 0. The clamp only affects NaN rows, which must not raise an index error:
        # the caller detects their NaN log-probability.
        tokens = torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp_(
            max=logits.shape[-1] - 1
        )
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def truncation_processors(params: SamplingParams) -> LogitsProcessorList:
    """Return the truncation processors in vLLM's order: min_p, top_k, top_p.

    min_p is relative to the largest probability. top_k also keeps tokens that tie with its last
    one. top_p keeps the smallest set of most likely remaining tokens whose renormalized probability
    reaches top_p.
    """
    processors = LogitsProcessorList()
    if params.min_p > 0:
        processors.append(MinPLogitsWarper(params.min_p))
    if params.top_k > 0:
        processors.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        processors.append(TopPLogitsWarper(params.top_p))
    return processors
