"""What rows of different lengths cost beside each other."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

# Of a microbatch, beside its tokens: kernels that are started one by one, weights that are read (or gathered from
# other ranks) once, products too small to fill a GPU. That of a GPU is an estimate, never run on one.
CPU_MICROBATCH, GPU_MICROBATCH = 64, 2048


@dataclass(frozen=True)
class RowCost:
    """Costs in units of a position's linear layers: a row of n positions costs ``n + attention n^2``."""

    attention: float = 0.0  # of a pair of positions
    microbatch: float = CPU_MICROBATCH  # of a microbatch, whatever is in it

    def of_row(self, length: float) -> float:
        """Cost of one row of so many positions, padding included."""
        return length + self.attention * length**2


def row_cost(causal_lm: PreTrainedModel) -> RowCost:
    """That of a model, by its floating-point operations.

    A position takes 2 in each weight of the layers; in a layer, causal attention of n positions takes ``n^2 / 2``
    scores and as many products with values, of 2 heads x head size operations each.
    """
    config = causal_lm.config.get_text_config()
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    pairs = 2 * config.num_hidden_layers * config.num_attention_heads * head_size
    looked_up = {id(module.weight) for module in causal_lm.modules() if isinstance(module, torch.nn.Embedding)}
    # Sharded parameters (ZeRO stage 3) have their size elsewhere.
    weights = sum(
        getattr(parameter, "ds_numel", parameter.numel())
        for parameter in causal_lm.base_model.parameters()
        if id(parameter) not in looked_up
    )
    on_gpu = causal_lm.device.type == "cuda"
    return RowCost(pairs / (2 * weights), GPU_MICROBATCH if on_gpu else CPU_MICROBATCH)
