"""Log-probabilities of completion tokens without materializing all logits, and the forward pass
that scoring caches for the update.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from trainer.cpu.packed_rows import pack, packed_hidden_states, takes_packed_rows
from trainer.policy.architectures import CHUNK_BYTES
from trainer.policy.compiled_layers import CompiledLayers
from trainer.policy.packing import hidden_states_in_line, line_up
from trainer.policy.scoring_head import ScoringHead, TokenStatistic
from trainer.types import RowLayout


class TokenScores(NamedTuple):
    """Model outputs at the completion tokens of some rows; 0 outside the completion mask.

    A NamedTuple, because ZeRO stage 3 only finds output tensors in tuples.
    """

    logprobs: Tensor  # [b, T], differentiable if grad mode is on
    entropies: Tensor | None = None  # [b, T], differentiable if grad mode is on
    # [b, T], detached: norm of d logprob / d (logits / temperature)
    gradient_norms: Tensor | None = None
    computed: int = 0  # number of positions computed
    token_statistics: Tensor | None = None  # [b, T], detached; see `PolicyLoss.token_statistic`


class LogprobModel(nn.Module):
    """A causal language model that returns log-probabilities of given tokens instead of logits.

    Computes ``log_softmax(logits / temperature)`` at completion tokens only, in float32 and in
    chunks whose logits are recomputed in the backward pass. A full [B, T, vocabulary] tensor never
    exists. If the model takes packed rows (float32 on a CPU), adjacent rows with the same prompt
    compute the prompt once. Otherwise rows are padded, or with ``in_line`` computed as one sequence
    without padding. It is an nn.Module so that DDP and DeepSpeed wrap its ``forward``.

    Args:
        causal_lm: the policy or the reference.
        temperature: divisor of the logits.
        chunk_tokens: number of tokens per chunk.
        compute_dtype: dtype of autocast; float32 turns autocast off.
        token_statistic: see `PolicyLoss.token_statistic`.
        in_line: whether to compute rows as one sequence.
        compiled: the model's compiled layers; None if they are not compiled.
    """

    def __init__(
        self,
        causal_lm: PreTrainedModel,
        temperature: float,
        chunk_tokens: int,
        compute_dtype: torch.dtype = torch.float32,
        token_statistic: TokenStatistic | None = None,
        in_line: bool = False,
        compiled: CompiledLayers | None = None,
    ) -> None:
        super().__init__()
        self.causal_lm = causal_lm
        self.compiled = compiled
        self.head = ScoringHead(
            causal_lm.get_output_embeddings(), temperature, chunk_tokens, token_statistic
        )
        self.compute_dtype = compute_dtype
        self.layout: RowLayout = "line" if in_line else "padded"
        if takes_packed_rows(causal_lm) and compute_dtype == torch.float32:
            self.layout = "shared_prompts"

    def forward(
        self,
        input_ids: Tensor,
        prompt_lengths: Tensor,
        completion_mask: Tensor,
        with_entropy: bool = False,
    ) -> TokenScores:
        """Return the scores of the completion tokens.

        Args:
            input_ids: [b, L], rows of prompt, completion, padding.
            prompt_lengths: [b].
            completion_mask: [b, T]. If mask and lengths are on the host, the call does not
                synchronize with the device.
            with_entropy: also return the entropy of each next-token distribution, the gradient
                norm of each log-probability with respect to ``logits / temperature``,
                ``|onehot(token) - pi|``, and the token statistic, if there is one.
        """
        device = input_ids.device
        with torch.autocast(
            device.type, self.compute_dtype, enabled=self.compute_dtype != torch.float32
        ):
            rows, columns = completion_mask.nonzero(as_tuple=True)
            positions = prompt_lengths.to(rows.device)[rows] + columns
            rows, columns, positions = torch.stack([rows, columns, positions]).to(
                device, non_blocking=True
            )
            targets = input_ids[rows, positions]
            if self.layout == "shared_prompts":
                packing = pack(input_ids, prompt_lengths, completion_mask)
                predicting = packed_hidden_states(self.causal_lm, packing)
                n_computed = packing.input_ids.numel()
            elif self.layout == "line":
                line = line_up(prompt_lengths, completion_mask)
                predicting = hidden_states_in_line(self.causal_lm, input_ids, line)
                n_computed = line.rows.numel()
            else:
                hidden = self.causal_lm.base_model(
                    input_ids=input_ids, use_cache=False
                ).last_hidden_state
                # the hidden state at the previous position predicts the token
                predicting = hidden[rows, positions - 1]
                n_computed = input_ids.numel()

            logprobs, entropies, gradient_norms, statistics = self.head(
                predicting, targets, with_entropy
            )
        zeros = torch.zeros(completion_mask.shape, dtype=torch.float32, device=device)

        def placed(values: Tensor) -> Tensor:
            return zeros.index_put((rows, columns), values)

        return TokenScores(
            logprobs=placed(logprobs),
            entropies=None if entropies is None else placed(entropies),
            gradient_norms=None if gradient_norms is None else placed(gradient_norms),
            computed=n_computed,
            token_statistics=None if statistics is None else placed(statistics),
        )


def tokens_per_chunk(vocabulary: int, on_gpu: bool) -> int:
    """Return the chunk size in tokens, at least 1, that keeps float32 logits within
    `CHUNK_BYTES`.
    """
    return max(1, CHUNK_BYTES[on_gpu] // (4 * vocabulary))


class CachedForward:
    """Cache of the policy's forward pass on the first microbatch, with its autograd graph, from
    scoring to the update.

    Until the weights change, the update would recompute exactly the forward pass that produced the
    old log-probabilities. Only one microbatch is cached: the update keeps only one graph at a time
    anyway, so peak memory does not grow. docs/explanation/benchmarks.md has the time of a step
    without the cache. The cache saves nothing if the update skips rows of the microbatch, such as
    zero-variance groups.
    """

    def __init__(self) -> None:
        self._kept: tuple[Tensor, TokenScores] | None = None

    def keep(self, rows: Tensor, scores: TokenScores) -> None:
        """Cache the outputs for rows [b], computed with gradients; replaces the previous entry."""
        self._kept = rows, scores

    def free(self) -> None:
        """Drop the cached forward pass."""
        self._kept = None

    def take(self, rows: Tensor) -> TokenScores | None:
        """Return the cached outputs if they are for exactly these rows [b], else None. Clears the
        cache either way, because the weights change next.
        """
        kept = self._kept
        self._kept = None
        return kept[1] if kept is not None and kept[0].equal(rows) else None
