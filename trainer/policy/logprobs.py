"""Log-probabilities of completion tokens, with logits only where and while they are needed."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from trainer.cpu import attention
from trainer.errors import ConfigError, first_line
from trainer.packing import pack, rows_to_try
from trainer.policy import flex_attention
from trainer.policy.scoring_head import ScoringHead

CPU_CHUNK_MB, GPU_CHUNK_MB = 128, 1024
# Of the norm of hidden states, between packed and padded rows of one model.
PACKED_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}


class TokenScores(NamedTuple):
    """What the model says about the completion tokens of some rows; 0 outside the completion mask.

    A tuple, because ZeRO stage 3 looks for a module's output tensors in tuples and not in other classes.
    """

    logprobs: Tensor  # [b, T], with gradient where grad mode is on
    entropies: Tensor | None  # [b, T], detached
    gradient_norms: Tensor | None = None  # [b, T], detached: norm of the logprob's gradient by the scaled logits
    computed: int = 0  # positions that the model ran on


class LogprobModel(nn.Module):
    """A causal language model that returns log-probabilities of given tokens instead of logits.

    ``log_softmax(logits / temperature)`` at completion tokens only, computed in float32 over chunks of tokens
    whose logits are recomputed in the backward pass: no [B, T, vocabulary] tensor exists at any time. Where the
    model takes packed rows (float32 on a CPU, or flex attention), adjacent rows with the same prompt share its
    computation. It is a module of its own so that what wraps a model for data parallelism sees an ordinary
    ``forward``.
    """

    def __init__(
        self,
        causal_lm: PreTrainedModel,
        temperature: float,
        chunk_tokens: int,
        compute_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.causal_lm = causal_lm
        self.head = ScoringHead(causal_lm.get_output_embeddings(), temperature, chunk_tokens)
        self.compute_dtype = compute_dtype
        packs_here = attention.takes_packed_rows(causal_lm) and compute_dtype == torch.float32
        self.packs_rows = packs_here or flex_attention.takes_flex_attention(causal_lm)

    def forward(
        self, input_ids: Tensor, prompt_lengths: Tensor, completion_mask: Tensor, with_entropy: bool = False
    ) -> TokenScores:
        """Score the completion tokens.

        Args:
            input_ids: [b, L], rows of prompt, completion, padding.
            prompt_lengths: [b].
            completion_mask: [b, T].
            with_entropy: also return the entropy of each next-token distribution, and the gradient norm of each
                log-probability with respect to ``logits / temperature``: ``|onehot(token) - pi|``.
        """
        with self.precision(input_ids.device):
            return self._forward(input_ids, prompt_lengths, completion_mask, with_entropy)

    def precision(self, device: torch.device) -> torch.autocast:
        """A context in which the model computes in its dtype."""
        return torch.autocast(device.type, self.compute_dtype, enabled=self.compute_dtype != torch.float32)

    def padded_states(self, input_ids: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        """Hidden states before some tokens, each in a row at a position, [N, H]."""
        hidden: Tensor = self.causal_lm.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
        return hidden[rows, positions - 1]  # the state before a token predicts it

    def packed_states(
        self, input_ids: Tensor, prompt_lengths: Tensor, completion_mask: Tensor
    ) -> tuple[Tensor, int]:
        """Hidden states before each completion token, [N, H] in row-major order, and the positions computed."""
        packing = pack(input_ids.cpu(), prompt_lengths.cpu(), completion_mask.cpu())
        if not flex_attention.takes_flex_attention(self.causal_lm):
            return attention.packed_hidden_states(self.causal_lm, packing), packing.input_ids.numel()
        packing = flex_attention.in_blocks(packing)
        states = flex_attention.packed_hidden_states(self.causal_lm, packing, input_ids.device)
        return states, packing.input_ids.numel()

    def _forward(
        self, input_ids: Tensor, prompt_lengths: Tensor, completion_mask: Tensor, with_entropy: bool
    ) -> TokenScores:
        rows, positions = _completion_tokens(prompt_lengths, completion_mask)
        if self.packs_rows:
            predicting, computed = self.packed_states(input_ids, prompt_lengths, completion_mask)
        else:
            predicting, computed = self.padded_states(input_ids, rows, positions), input_ids.numel()
        targets = input_ids[rows, positions]

        logprobs, entropies, gradient_norms = self.head(predicting, targets, with_entropy)
        place = completion_mask.bool()
        zeros = torch.zeros(completion_mask.shape, dtype=torch.float32, device=targets.device)
        return TokenScores(
            zeros.masked_scatter(place, logprobs),
            zeros.masked_scatter(place, entropies) if with_entropy else None,
            zeros.masked_scatter(place, gradient_norms) if with_entropy else None,
            computed,
        )


def _completion_tokens(prompt_lengths: Tensor, completion_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Row and position of each completion token in row-major order, [N] each."""
    rows, columns = completion_mask.nonzero(as_tuple=True)
    return rows, prompt_lengths[rows] + columns


def tokens_per_chunk(vocabulary: int, megabytes: int | None, on_gpu: bool) -> int:
    """Tokens whose float32 logits fill so many MiB (at least one); of the device's own choice if None.

    The caches of a CPU like small chunks, a GPU is idle between them: at 152,000 tokens of vocabulary the 128 MiB
    of a CPU are 220 tokens.
    """
    megabytes = megabytes or (GPU_CHUNK_MB if on_gpu else CPU_CHUNK_MB)
    return max(1, megabytes * 2**20 // (4 * vocabulary))


@torch.no_grad()
def check_logits(causal_lm: PreTrainedModel) -> None:
    """Make sure that hidden states and output embedding are all there is to this model's logits.

    Raises:
        ConfigError: the architecture transforms its logits further (soft-capping, scaling).
    """
    vocabulary = causal_lm.get_input_embeddings().num_embeddings
    probe = (torch.arange(8, device=causal_lm.device) * 7 % vocabulary)[None]
    theirs = causal_lm(input_ids=probe, use_cache=False).logits.float()
    ours = causal_lm.get_output_embeddings()(
        causal_lm.base_model(input_ids=probe, use_cache=False).last_hidden_state
    ).float()
    largest = float((theirs - ours).abs().max())
    if largest > 1e-3 * max(1.0, float(theirs.abs().max())):
        raise ConfigError(
            f"{type(causal_lm).__name__} changes its logits after the output embedding (by up to {largest:.3g})",
            "model.name_or_path",
            "use a model without logit soft-capping or scaling, e.g. Qwen2 or Llama",
        )


@torch.no_grad()
def check_packing(model: LogprobModel) -> None:
    """Make sure that a model with flex attention computes packed rows as it does padded ones.

    Args:
        model: with its weights whole on this rank.

    Raises:
        ConfigError: it does not, or torch has no kernel for it.
    """
    causal_lm, name = model.causal_lm, type(model.causal_lm).__name__
    dtype = causal_lm.dtype if model.compute_dtype == torch.float32 else model.compute_dtype
    device = causal_lm.device
    ids, prompt_lengths, asked = rows_to_try(causal_lm.get_input_embeddings().num_embeddings)
    rows = ids.to(device), prompt_lengths.to(device), asked.to(device)
    try:
        if flex_attention.has_kernel(device):
            flex_attention.check_kernel(causal_lm, dtype)
        with model.precision(device):
            packed = model.packed_states(*rows)[0].float()
            padded = model.padded_states(rows[0], *_completion_tokens(*rows[1:])).float()
    except (RuntimeError, TypeError, ValueError) as error:
        raise flex_attention.not_packed(f"{name} does not take them: {first_line(error)}") from error
    difference = float((packed - padded).norm() / padded.norm())
    if not difference < PACKED_TOLERANCE[dtype]:
        raise flex_attention.not_packed(f"hidden states of {name} would differ by {difference:.2g} of their norm")
