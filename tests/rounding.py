"""How far two correct float32 computations of one number may lie apart, on any CPU.

A sum of n float32 terms, in whatever order, is off by at most

    LAMBDA * sqrt(n) * 2**-24 * sum of |term|

save with a chance of 2 * exp(-LAMBDA**2 / 2), and two sums differ by at most twice that [Higham and
Mary, SIAM J. Sci. Comput. 41 (2019), theorem 2.4]. The roundings of sums of sums, such as a model's
layers, are as independent as the terms of one sum: their lengths add up.
"""

import math
from typing import Any

from transformers import PretrainedConfig

LAMBDA = 5.0  # a chance of 7e-6
UNIT = 2.0**-24  # of float32: half of the distance from 1 to the next number


def sum_tolerance(terms: int, scale: float = 1.0) -> float:
    """Largest difference of two sums.

    Args:
        terms: of the sum, and of those that its terms are made of.
        scale: sum of the terms' sizes; 1 makes the tolerance a relative one of sums without
            cancellation.
    """
    return 2 * LAMBDA * math.sqrt(terms) * UNIT * scale


def forward_terms(model: PretrainedConfig, length: int) -> int:
    """Terms of the sums that follow one another on the way from a token to a log-probability."""
    hidden = model.hidden_size
    head = model.hidden_size // model.num_attention_heads
    # projections, scores, average of values, projection
    attention = hidden + head + length + hidden
    norms = 2 * hidden
    layer = attention + norms + hidden + model.intermediate_size
    return model.num_hidden_layers * layer + 2 * hidden + model.vocab_size


def gradient_terms(model: PretrainedConfig, length: int, tokens: int) -> int:
    """Terms on the way to the gradient of a weight: forward, backward (two products for each), sum
    over tokens.
    """
    return 3 * forward_terms(model, length) + tokens


def adamw_tolerance(terms: int, gradient: float, updates: int, lr: float, eps: float) -> float:
    """Largest difference of a weight after AdamW steps on gradients that differ by rounding.

    A step moves a weight by lr * m / (sqrt(v) + eps). Errors of d in every gradient change m and
    sqrt(v), averages of it, by at most d each; |m| <= 1.5 sqrt(v) in the first 40 steps for betas
    of 0.9 and 0.999 [Cauchy and Schwarz]. So a step changes by at most 2.5 * lr * d / eps, and the
    steps' changes add up.

    Args:
        terms: see `gradient_terms`.
        gradient: size of the largest one, as AdamW gets it.
        updates: steps.
        lr: learning rate.
        eps: of AdamW; for 1e-8 the bound is void, as rounding decides on the sign of a step where a
            gradient is 0.
    """
    return updates * 2.5 * lr * sum_tolerance(terms, gradient) / eps


def largest_gradient(optimizer: Any) -> float:
    """Size of the largest gradient of a weight by AdamW's mean of squares; 0 where DeepSpeed holds
    that.
    """
    states = getattr(optimizer, "state", {}).values()
    squares = [
        float(state["exp_avg_sq"].max() / (1 - 0.999 ** float(state["step"]))) for state in states
    ]
    return max(squares, default=0.0) ** 0.5
