"""Compute log-probabilities of the same tokens on different paths, one tensor per row."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from trainer.load_check.rows import Row
from trainer.policy.logprobs import LogprobModel
from trainer.rollouts.transformers import evaluating


def parameter_count(model: nn.Module) -> int:
    """Return the number of parameters, including sharded ones (ZeRO stage 3)."""
    return sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())


def unwrapped(policy: nn.Module) -> LogprobModel:
    """Return the `LogprobModel` inside DDP's or DeepSpeed's wrapper."""
    module: Any = getattr(policy, "module", policy)
    assert isinstance(module, LogprobModel)
    return module


def scored(policy: nn.Module, rows: Sequence[Row]) -> list[Tensor]:
    """Score the rows as a training step does, with one microbatch per kind, because rotary angles
    may depend on the longest row of the microbatch.
    """
    logprobs = []
    for _, of_kind in itertools.groupby(rows, key=lambda row: row.kind):
        logprobs += _microbatch(policy, list(of_kind))
    return logprobs


@torch.no_grad()
def _microbatch(policy: nn.Module, rows: Sequence[Row]) -> list[Tensor]:
    device = unwrapped(policy).causal_lm.device
    pad = nn.utils.rnn.pad_sequence
    input_ids = pad([torch.tensor([*r.prompt, *r.completion]) for r in rows], batch_first=True)
    mask = pad([torch.ones(len(r.completion)) for r in rows], batch_first=True)
    prompt_lengths = torch.tensor([len(r.prompt) for r in rows])
    logprobs = policy(input_ids.to(device), prompt_lengths, mask).logprobs.float().cpu()
    return [logprobs[i, : len(row.completion)] for i, row in enumerate(rows)]


@torch.no_grad()
def plain(model: PreTrainedModel, rows: Sequence[Row], temperature: float) -> list[Tensor]:
    """Compute the rows' log-probabilities with plain transformers calls:
    ``model(input_ids).logits`` in evaluation mode, one row at a time, without padding or cache.
    """
    logprobs = []
    with evaluating(model):
        for row in rows:
            ids = torch.tensor([[*row.prompt, *row.completion]], device=model.device)
            logits = model(input_ids=ids, use_cache=False).logits[0, len(row.prompt) - 1 : -1]
            all_logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
            completion = ids[0, len(row.prompt) :, None]
            logprobs.append(all_logprobs.gather(-1, completion)[:, 0].cpu())
    return logprobs


def own(policy: nn.Module, rows: Sequence[Row]) -> list[Tensor]:
    """Compute the rows' log-probabilities as in `plain`, with the loaded policy but without its
    compiled layers.
    """
    scores = unwrapped(policy)
    with ExitStack() as stack:
        if scores.compiled is not None:
            stack.enter_context(scores.compiled.off())
        return plain(scores.causal_lm, rows, scores.head.temperature)


def sampled(rows: Sequence[Row]) -> list[Tensor]:
    """Return the engine's log-probabilities of the rows."""
    return [torch.tensor(row.sampled) for row in rows]


@contextmanager
def padded(policy: nn.Module) -> Iterator[None]:
    """Score rows with padding instead of packing."""
    scores = unwrapped(policy)
    layout = scores.layout
    scores.layout = "padded"
    try:
        yield
    finally:
        scores.layout = layout
