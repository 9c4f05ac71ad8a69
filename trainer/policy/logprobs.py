"""Log-probabilities of completion tokens, with logits only where and while they are needed."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from trainer.cpu.attention import packed_hidden_states, takes_packed_rows
from trainer.cpu.onednn import linear
from trainer.cpu.packing import pack
from trainer.errors import ConfigError


class TokenScores(NamedTuple):
    """What the model says about the completion tokens of some rows; 0 outside the completion mask.

    A tuple, because ZeRO stage 3 looks for a module's output tensors in tuples and not in other classes.
    """

    logprobs: Tensor  # [b, T], with gradient where grad mode is on
    entropies: Tensor | None  # [b, T], detached
    gradient_norms: Tensor | None = None  # [b, T], detached: norm of the logprob's gradient by the scaled logits


class LogprobModel(nn.Module):
    """A causal language model that returns log-probabilities of given tokens instead of logits.

    ``log_softmax(logits / temperature)`` at completion tokens only, computed in float32 over chunks of tokens
    whose logits are recomputed in the backward pass: no [B, T, vocabulary] tensor exists at any time. Where the
    model takes packed rows (float32 on a CPU), adjacent rows with the same prompt share its computation. It is a
    module of its own so that what wraps a model for data parallelism sees an ordinary ``forward``.
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
        self.packs_rows = takes_packed_rows(causal_lm) and compute_dtype == torch.float32

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
        lower_precision = self.compute_dtype != torch.float32
        with torch.autocast(input_ids.device.type, self.compute_dtype, enabled=lower_precision):
            return self._forward(input_ids, prompt_lengths, completion_mask, with_entropy)

    def _forward(
        self, input_ids: Tensor, prompt_lengths: Tensor, completion_mask: Tensor, with_entropy: bool
    ) -> TokenScores:
        rows, columns = completion_mask.nonzero(as_tuple=True)  # in row-major order, [N] each
        positions = prompt_lengths[rows] + columns
        if self.packs_rows:
            packing = pack(input_ids, prompt_lengths, completion_mask)
            predicting = packed_hidden_states(self.causal_lm, packing).index_select(0, packing.predicting)
        else:
            hidden = self.causal_lm.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
            predicting = hidden[rows, positions - 1]  # [N, H]; the state before a token predicts it
        targets = input_ids[rows, positions]

        logprobs, entropies, gradient_norms = self.head(predicting, targets, with_entropy)
        place = completion_mask.bool()
        zeros = torch.zeros(completion_mask.shape, dtype=torch.float32, device=targets.device)
        return TokenScores(
            zeros.masked_scatter(place, logprobs),
            zeros.masked_scatter(place, entropies) if with_entropy else None,
            zeros.masked_scatter(place, gradient_norms) if with_entropy else None,
        )


class ScoringHead(nn.Module):
    """Log-probabilities of tokens from the hidden states before them, in chunks.

    It calls no other module: where parameters are gathered module by module (ZeRO stage 3), the output embedding
    is then gathered once for all chunks, however many this rank has.

    Args:
        output_embeddings: the model's linear layer to the vocabulary; it stays the model's own.
        temperature: logits are divided by it.
        chunk_tokens: tokens whose logits exist at one time.
    """

    def __init__(self, output_embeddings: nn.Linear, temperature: float, chunk_tokens: int) -> None:
        super().__init__()
        self._owned_elsewhere = (output_embeddings,)  # a tuple keeps it out of this module's parameters
        self.temperature = temperature
        self.chunk_tokens = chunk_tokens

    @property
    def output_embeddings(self) -> nn.Linear:
        """The model's linear layer to the vocabulary."""
        return self._owned_elsewhere[0]

    def forward(self, hidden: Tensor, targets: Tensor, with_entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, entropies and gradient norms, [N] each, of ``targets`` [N] after ``hidden`` [N, H].

        Without ``with_entropy`` the last two are placeholders.
        """
        chunks = []
        for chunk, chunk_targets in zip(
            hidden.split(self.chunk_tokens), targets.split(self.chunk_tokens), strict=True
        ):
            if torch.is_grad_enabled():
                scores = checkpoint(
                    self._score, chunk, chunk_targets, with_entropy, use_reentrant=False, preserve_rng_state=False
                )
            else:
                scores = self._score(chunk, chunk_targets, with_entropy)
            chunks.append(scores)
        logprobs, entropies, gradient_norms = (torch.cat(part) for part in zip(*chunks, strict=True))
        return logprobs, entropies, gradient_norms

    def _score(self, hidden: Tensor, targets: Tensor, with_entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
        head = self.output_embeddings
        logits = linear(hidden, head.weight, head.bias).float()  # [n, vocabulary]
        logits = logits.div_(self.temperature)  # in place: a second copy would be the peak of a step's memory
        log_normalizer = logits.logsumexp(dim=-1)
        logprobs = logits.gather(-1, targets[:, None]).squeeze(-1) - log_normalizer
        if not with_entropy:
            return logprobs, logprobs.detach(), logprobs.detach()
        with torch.no_grad():
            # d logprob / d logits = onehot - pi: one tensor serves the norm and, as -logprob is the part of the
            # entropy that the one-hot takes out, the entropy too.
            difference = (logits - log_normalizer[:, None]).exp_()
            difference.scatter_add_(-1, targets[:, None], difference.new_full((len(targets), 1), -1.0))
            gradient_norms = torch.linalg.vector_norm(difference, dim=-1)
            entropies = -logprobs - difference.mul_(logits).sum(dim=-1)
        return logprobs, entropies, gradient_norms


def tokens_per_chunk(causal_lm: PreTrainedModel, megabytes: int) -> int:
    """Tokens whose float32 logits over the model's vocabulary fill ``megabytes`` MiB (at least one)."""
    vocab_size: int = causal_lm.config.get_text_config().vocab_size
    return max(1, megabytes * 2**20 // (4 * vocab_size))


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
