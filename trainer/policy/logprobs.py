"""Log-probabilities of completion tokens, with logits only where and while they are needed."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from trainer.cpu import attention
from trainer.cpu.packing import pack
from trainer.errors import ConfigError
from trainer.policy.architectures import CHUNK_BYTES
from trainer.policy.scoring_head import ScoringHead


class TokenScores(NamedTuple):
    """Model outputs at the completion tokens of some rows; 0 outside the completion mask.

    A tuple, because ZeRO stage 3 looks for a module's output tensors in tuples and not in other
    classes.
    """

    logprobs: Tensor  # [b, T], with gradient where grad mode is on
    entropies: Tensor | None = None  # [b, T], with gradient where grad mode is on
    # [b, T], detached: norm of the logprob's gradient by the scaled logits
    gradient_norms: Tensor | None = None
    computed: int = 0  # positions that the model ran on
    proxy_logprobs: Tensor | None = None  # [b, T], detached, -inf at tokens that the proxy has not


class LogprobModel(nn.Module):
    """A causal language model that returns log-probabilities of given tokens instead of logits.

    ``log_softmax(logits / temperature)`` at completion tokens only, computed in float32 over chunks
    of tokens whose logits are recomputed in the backward pass: no [B, T, vocabulary] tensor exists
    at any time. Where the model takes packed rows (float32 on a CPU), adjacent rows with the same
    prompt share its computation. It is a module of its own so that what wraps a model for data
    parallelism sees an ordinary ``forward``.
    """

    def __init__(
        self,
        causal_lm: PreTrainedModel,
        temperature: float,
        chunk_tokens: int,
        compute_dtype: torch.dtype = torch.float32,
        proxy_min_p: float = 0.0,
    ) -> None:
        super().__init__()
        self.causal_lm = causal_lm
        self.head = ScoringHead(
            causal_lm.get_output_embeddings(), temperature, chunk_tokens, proxy_min_p
        )
        self.compute_dtype = compute_dtype
        self.packs_rows = attention.takes_packed_rows(causal_lm) and compute_dtype == torch.float32

    def forward(
        self,
        input_ids: Tensor,
        prompt_lengths: Tensor,
        completion_mask: Tensor,
        with_entropy: bool = False,
    ) -> TokenScores:
        """Score the completion tokens.

        Args:
            input_ids: [b, L], rows of prompt, completion, padding.
            prompt_lengths: [b].
            completion_mask: [b, T]. Where it is on the host, as are the lengths, nothing waits for
                the device.
            with_entropy: also return the entropy of each next-token distribution, and the gradient
                norm of each log-probability with respect to ``logits / temperature``:
                ``|onehot(token) - pi|``.
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
            if self.packs_rows:
                packing = pack(input_ids, prompt_lengths, completion_mask)
                predicting = attention.packed_hidden_states(self.causal_lm, packing)
                computed = packing.input_ids.numel()
            else:
                hidden = self.causal_lm.base_model(
                    input_ids=input_ids, use_cache=False
                ).last_hidden_state
                predicting = hidden[rows, positions - 1]  # the state before a token predicts it
                computed = input_ids.numel()

            logprobs, entropies, gradient_norms, proxy_logprobs = self.head(
                predicting, targets, with_entropy
            )
        zeros = torch.zeros(completion_mask.shape, dtype=torch.float32, device=device)
        return TokenScores(
            zeros.index_put((rows, columns), logprobs),
            zeros.index_put((rows, columns), entropies) if with_entropy else None,
            zeros.index_put((rows, columns), gradient_norms) if with_entropy else None,
            computed,
            None if proxy_logprobs is None else zeros.index_put((rows, columns), proxy_logprobs),
        )


def tokens_per_chunk(vocabulary: int, on_gpu: bool) -> int:
    """Return the number of tokens, at least one, whose float32 logits exist together on a
    device.
    """
    return max(1, CHUNK_BYTES[on_gpu] // (4 * vocabulary))


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
            f"{type(causal_lm).__name__} changes its logits after the output embedding (by up to "
            f"{largest:.3g})",
            "model.name_or_path",
            "use a model without logit soft-capping or scaling, e.g. Qwen2 or Llama",
        )
