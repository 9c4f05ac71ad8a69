"""Chunked log-probabilities from hidden states.

Shapes: N tokens, n tokens of a chunk, H hidden size, V vocabulary size.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trainer.cpu.linear import linear

# probabilities [n, V] and scored tokens [n, 1] -> a number for each token [n], or None
TokenStatistic = Callable[[Tensor, Tensor], Tensor | None]


class ScoringHead(nn.Module):
    """LM head that computes log-probabilities in chunks and recomputes their logits in the backward
    pass.

    It calls no submodule, so that ZeRO stage 3 gathers the output embedding once, independent of
    this rank's number of chunks. The model keeps ownership of the output embedding. Logits of at
    most ``chunk_tokens`` tokens exist at a time.
    """

    def __init__(
        self,
        output_embeddings: nn.Linear,
        temperature: float,
        chunk_tokens: int,
        token_statistic: TokenStatistic | None = None,
    ) -> None:
        super().__init__()
        # in a tuple, so that its weights do not become parameters of this module
        self._output_embeddings = (output_embeddings,)
        self.temperature = temperature
        self.chunk_tokens = chunk_tokens
        self.token_statistic = token_statistic

    @property
    def output_embeddings(self) -> nn.Linear:
        """The model's output embedding (LM head)."""
        return self._output_embeddings[0]

    def forward(
        self, hidden: Tensor, targets: Tensor, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """Return log-probabilities, entropies, gradient norms and token statistics, [N] each.

        Scores ``targets`` [N] given ``hidden`` [N, H]. Without ``with_entropy`` all but the
        log-probabilities are None. Token statistics are also None if ``token_statistic`` is None
        or returns None. Log-probabilities and entropies are differentiable.
        """
        head = self.output_embeddings
        device = hidden.device.type
        dtype = (
            torch.get_autocast_dtype(device)
            if torch.is_autocast_enabled(device)
            else head.weight.dtype
        )
        options = _Options(
            self.temperature, self.chunk_tokens, dtype, with_entropy, self.token_statistic
        )
        scores: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None] = _Scores.apply(
            hidden, head.weight, head.bias, targets, options
        )  # type: ignore[no-untyped-call]
        return scores


@dataclass(frozen=True)
class _Options:
    temperature: float
    chunk_tokens: int
    dtype: torch.dtype  # dtype of the matrix products with the output embedding
    with_entropy: bool
    token_statistic: TokenStatistic | None


class _Scores(torch.autograd.Function):
    """With p = softmax(logits / temperature): d logprob / d logits = (onehot - p) / temperature.

    d entropy / d logits = ``-p (log p + entropy) / temperature``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        options: _Options,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        layer = _Layer(weight, bias, options)
        logprobs = torch.empty(targets.shape, device=hidden.device)
        # the backward pass recomputes logits, but not the sum over the vocabulary
        log_normalizers = torch.empty_like(logprobs)
        details = _Details.empty_like(logprobs, options) if options.with_entropy else None
        for chunk in _chunks(len(targets), options):
            logits = layer.logits(hidden[chunk])
            target = targets[chunk, None]
            log_normalizers[chunk] = logits.logsumexp(dim=-1)
            logprobs[chunk] = logits.gather(-1, target).squeeze(-1) - log_normalizers[chunk]
            if details is not None:
                probabilities = (logits - log_normalizers[chunk, None]).exp_()
                details.compute(chunk, logits, probabilities, target, logprobs[chunk])

        entropies = None if details is None else details.entropies
        ctx.save_for_backward(hidden, weight, bias, targets, log_normalizers, entropies)
        ctx.options = options
        # an output without a gradient gets None instead of zeros in the backward pass
        ctx.set_materialize_grads(False)
        if details is None:
            return logprobs, None, None, None
        ctx.mark_non_differentiable(details.gradient_norms)
        statistics = details.token_statistics()
        if statistics is not None:
            ctx.mark_non_differentiable(statistics)
        return logprobs, details.entropies, details.gradient_norms, statistics

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs: Tensor | None, grad_entropies: Tensor | None, *_: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, log_normalizers, entropies = ctx.saved_tensors
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(log_normalizers)
        options: _Options = ctx.options
        layer = _Layer(weight, bias, options)
        wants_hidden, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        # accumulate in float32: thousands of chunks would otherwise each be rounded to the weights'
        # precision
        grad_weight = torch.zeros(weight.shape, device=weight.device) if wants_weight else None
        grad_bias = torch.zeros(weight.shape[0], device=weight.device) if wants_bias else None
        for chunk in _chunks(len(targets), options):
            scaled = (grad_logprobs[chunk, None] / options.temperature).float()
            log_probs = layer.logits(hidden[chunk]).sub_(log_normalizers[chunk, None])
            # The gradient of the logits is p * -(g_logprob + g_entropy (log p + entropy)), plus
            # g_logprob at the target. In place, because it is as large as the logits.
            if grad_entropies is None:
                grad = log_probs.exp_().mul_(-scaled)
            else:
                entropy_grad = (grad_entropies[chunk, None] / options.temperature).float()
                probabilities = log_probs.exp()
                weights = log_probs.add_(entropies[chunk, None]).mul_(entropy_grad).add_(scaled)
                grad = probabilities.mul_(weights.neg_())
            grad.scatter_add_(-1, targets[chunk, None], scaled)
            if grad_bias is not None:
                grad_bias += grad.sum(dim=0)
            grad = grad.to(options.dtype)
            if grad_hidden is not None:
                grad_hidden[chunk] = linear(grad, layer.weight.t())
            if grad_weight is not None:
                _add_weight_gradient(grad_weight, grad, hidden[chunk].to(options.dtype))
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
        )


class _Layer:
    """The output embedding cast to the compute dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None, options: _Options) -> None:
        self.weight = weight.detach().to(options.dtype)
        self._bias = None if bias is None else bias.detach().to(options.dtype)
        self._temperature = options.temperature
        self._dtype = options.dtype

    def logits(self, hidden: Tensor) -> Tensor:
        """Return ``logits / temperature`` in float32, [n, V]."""
        logits = linear(hidden.to(self._dtype), self.weight, self._bias).float()
        # in place: a second copy would raise the step's peak memory
        return logits.div_(self._temperature)


@dataclass(frozen=True)
class _Details:
    """Properties of the distribution at each token, [N], for metrics and for the rules that read
    them.
    """

    entropies: Tensor
    gradient_norms: Tensor  # norm of onehot - p
    statistic: TokenStatistic | None
    statistics: list[Tensor] = field(default_factory=list)  # [n] of each chunk computed so far

    @classmethod
    def empty_like(cls, logprobs: Tensor, options: _Options) -> "_Details":
        """Return uninitialized details."""
        return cls(
            entropies=torch.empty_like(logprobs),
            gradient_norms=torch.empty_like(logprobs),
            statistic=options.token_statistic,
        )

    def compute(
        self, chunk: slice, logits: Tensor, probabilities: Tensor, target: Tensor, logprobs: Tensor
    ) -> None:
        """Fill in a chunk from its logits and probabilities [n, V], and its targets [n, 1] with
        their log-probabilities [n]. Overwrites ``probabilities``.
        """
        # first, because the rest overwrites the probabilities
        values = None if self.statistic is None else self.statistic(probabilities, target)
        if values is not None:
            self.statistics.append(values)
        # Both results use p - onehot: its norm is the gradient norm, and since log p = logits - c
        # and logprob = logit of the target - c, entropy = -logprob - sum((p - onehot) * logits).
        difference = probabilities.scatter_add_(
            -1, target, probabilities.new_full(target.shape, -1.0)
        )
        self.gradient_norms[chunk] = torch.linalg.vector_norm(difference, dim=-1)
        self.entropies[chunk] = -logprobs - difference.mul_(logits).sum(dim=-1)

    def token_statistics(self) -> Tensor | None:
        """Return the statistics of all tokens, [N]; None if none were computed."""
        return torch.cat(self.statistics) if self.statistics else None


def _add_weight_gradient(total: Tensor, grad_output: Tensor, rows: Tensor) -> None:
    """Add ``grad_output.T @ rows`` ([n, V] and [n, H], same dtype) to ``total`` [V, H] in
    float32.
    """
    if grad_output.dtype == torch.float32:
        total.addmm_(grad_output.t(), rows)
    elif grad_output.device.type == "cuda":
        torch.addmm(total, grad_output.t(), rows, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(grad_output.t().float(), rows.float())


def _chunks(tokens: int, options: _Options) -> list[slice]:
    return [
        slice(start, start + options.chunk_tokens)
        for start in range(0, tokens, options.chunk_tokens)
    ]
