"""The check of `model.compile` and `model.packing` before training: same scores as without them."""

from contextlib import ExitStack

import torch
from torch import Tensor

from loptune.errors import ConfigError, first_line
from trainer.config.model import ModelConfig
from trainer.policy.logprobs import LogprobModel

# attention kernels that take rows in one line; SDPA only on a CPU
_VARLEN = ("flash_attention_2", "flash_attention_3")
# Largest mean |difference| of log-probabilities [nats]: the size of rounding errors, also in a
# random model with peaked distributions. Rows that see each other's tokens differ by tenths of a
# nat.
_BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 0.1}


@torch.no_grad()
def check_fast_forward(model: LogprobModel, config: ModelConfig) -> None:
    """Compare a model's scores with the scores of padded rows and layers that are not compiled, on
    three short rows.

    Raises:
        ConfigError: the scores differ, or the layers or the kernels do not run on this machine.
    """
    if not model.in_line and model.compiled is None:
        return
    key = "model.packing" if model.in_line else "model.compile"
    without = "model.packing=false" if model.in_line else "model.compile=none"
    weights = next(model.causal_lm.parameters())
    if model.in_line and weights.device.type != "cpu" and config.attn_implementation not in _VARLEN:
        raise ConfigError(
            f"packing needs flash attention on a GPU, but model.attn_implementation is "
            f"{config.attn_implementation}",
            key,
            f"set model.attn_implementation=flash_attention_2, or {without}",
            key=key,
            code="packing-without-flash",
        )
    try:
        fast = _scores(model)
    except Exception as error:
        # of torch's compiler, a kernel or the model's own code: of any class
        hint = f"set {without}"
        if model.compiled:
            hint += "; compiling needs a C++ compiler (apt-get install g++)"
        raise ConfigError(
            f"{key} does not run here: {first_line(error)}",
            key,
            hint,
            key=key,
            code="fast-forward-fails",
        ) from error
    difference = float((fast - _plain_scores(model)).abs().mean())
    dtype = weights.dtype if model.compute_dtype == torch.float32 else model.compute_dtype
    if not difference <= _BOUNDS[dtype]:
        raise ConfigError(
            f"{key} changes the log-probabilities of {type(model.causal_lm).__name__} by "
            f"{difference:.3g} nats on average",
            key,
            f"set {without}",
            key=key,
            code="fast-forward-differs",
        )


def _plain_scores(model: LogprobModel) -> Tensor:
    in_line = model.in_line
    with ExitStack() as stack:
        if model.compiled is not None:
            stack.enter_context(model.compiled.off())
        model.in_line = False
        try:
            return _scores(model)
        finally:
            model.in_line = in_line


def _scores(model: LogprobModel) -> Tensor:
    """Return the log-probabilities of three rows of 4 to 7 tokens."""
    vocabulary = model.causal_lm.get_input_embeddings().num_embeddings
    device = model.causal_lm.device
    input_ids = (torch.arange(3 * 7, device=device).view(3, 7) * 7 + 1) % vocabulary
    prompt_lengths = torch.tensor([4, 2, 3])
    completion_mask = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 1]])
    scores: Tensor = model(input_ids, prompt_lengths, completion_mask).logprobs
    return scores
