"""Packed rows on a GPU: torch's flex attention, which computes no block of scores that a mask leaves empty.

It has never run on a GPU. A kernel is compiled for packings of any length, once with gradient and once without. On
a CPU flex attention has no backward pass: there torch's other attention takes the same mask as a matrix, for tests
and comparisons.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from trainer.errors import ConfigError
from trainer.packing import Packing, pack

NAME = "sdpa_or_flex"
BLOCK = 128  # tokens whose scores are computed or left out together
# Of shorter packings torch would compile other kernels: for one block, and for few queries as in decoding.
FEWEST_BLOCKS = 2
KERNEL_TOLERANCE = 0.03  # of norms, in bfloat16; a wrong mask is wrong by 1


def use_flex_attention(model: PreTrainedModel) -> None:
    """Let a model take packed rows by flex attention, and padded ones by torch's other attention.

    Whether it does right is tried later (`trainer.policy.logprobs.check_packing`), where its weights are whole.

    Raises:
        ConfigError: a model with layers that do not attend to all positions.
    """
    others = set(getattr(model.config, "layer_types", None) or ()) - {"full_attention"}
    if others:
        raise not_packed(f"{type(model).__name__} has layers of {', '.join(sorted(others))}")
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def takes_flex_attention(model: PreTrainedModel) -> bool:
    """Whether `use_flex_attention` was called with the model."""
    return bool(model.config._attn_implementation == NAME)


def has_kernel(device: torch.device) -> bool:
    """Whether flex attention has a backward pass there."""
    return device.type != "cpu"


def not_packed(what: str) -> ConfigError:
    """The error of a model whose rows cannot be packed."""
    return ConfigError(f"rows cannot be packed: {what}", "model.packing", "set model.packing=none for padded rows")


def blocks_of(count: int) -> int:
    """Blocks that so many packed tokens fill."""
    return max(FEWEST_BLOCKS, -(-count // BLOCK))


def in_blocks(packing: Packing) -> Packing:
    """The packing with tokens at its end that see each other alone, as many as make its blocks whole."""
    count = len(packing.input_ids)
    padding = (0, blocks_of(count) * BLOCK - count)
    further = int(packing.sequences[-1]) + 1
    return replace(
        packing,
        input_ids=functional.pad(packing.input_ids, padding),
        position_ids=functional.pad(packing.position_ids, padding),
        sequences=functional.pad(packing.sequences, padding, value=further),
        prompts=functional.pad(packing.prompts, padding, value=further),
    )


def packed_hidden_states(model: PreTrainedModel, packing: Packing, device: torch.device) -> Tensor:
    """The last hidden states of the packed tokens before each completion token, [M, H].

    Args:
        model: that has gone through `use_flex_attention`.
        packing: of whole blocks.
        device: that the model computes on.
    """
    hidden: Tensor = model.base_model(
        input_ids=packing.input_ids[None].to(device),
        position_ids=packing.position_ids[None].to(device),
        attention_mask=block_mask(packing, device),
        use_cache=False,
    ).last_hidden_state
    return hidden[0].index_select(0, packing.predicting.to(device))


def block_mask(packing: Packing, device: torch.device) -> BlockMask:
    """Which tokens see which: those before them in their own sequence or in the prompt that it follows.

    ``create_block_mask`` would find the same blocks, by a matrix of all pairs of tokens.

    Args:
        packing: of whole blocks.
        device: to compute on.
    """
    own, prompts = (numbers.view(-1, BLOCK) for numbers in (packing.sequences, packing.prompts))
    sequences = torch.zeros(len(own), int(own.max()) + 1)  # by block and sequence
    holds = sequences.scatter(1, own, 1.0)
    seeing = sequences.scatter_add(1, own, torch.ones(own.shape))  # how many tokens of a block see the sequence
    seeing.scatter_add_(1, prompts, (prompts != own).float())
    full = ((seeing == BLOCK).float() @ holds.T == holds.sum(dim=1)).tril(-1)
    partial = (seeing @ holds.T > 0).tril() & ~full
    sequence_of, prompt_of = packing.sequences.to(device), packing.prompts.to(device)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        of_key = sequence_of[key]
        return (key <= query) & ((of_key == sequence_of[query]) | (of_key == prompt_of[query]))

    return BlockMask.from_kv_blocks(
        *_ordered(partial, device), *_ordered(full, device), BLOCK_SIZE=BLOCK, mask_mod=sees
    )


def dense_mask(mask: BlockMask) -> Tensor:
    """The same as a matrix, [N, N] bool."""
    places = torch.arange(mask.shape[-1], device=mask.kv_indices.device)
    zero = places.new_zeros(())
    dense: Tensor = mask.mask_mod(zero, zero, places[:, None], places[None])
    return dense


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """An attention function of transformers: flex attention where there is a mask of blocks, else sdpa.

    Raises:
        ConfigError: a layer that wants more of attention than packed rows get.
    """
    if isinstance(attention_mask, BlockMask):
        wanted = [name for name in ("sliding_window", "softcap", "s_aux") if options.get(name) is not None]
        if wanted:
            raise not_packed(f"{type(module).__name__} has {', '.join(wanted)}")
        if has_kernel(query.device):
            return _flex(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None
        attention_mask = dense_mask(attention_mask)[None, None]
    output: Tensor = sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
    )[0]
    return output, None


def check_kernel(causal_lm: PreTrainedModel, dtype: torch.dtype) -> None:
    """Make sure that the compiled kernel and its backward pass are those of the dense mask, in a model's shape.

    Raises:
        ConfigError: they are not.
        RuntimeError: torch has no kernel for heads of this size on this device.
    """
    config, generator = causal_lm.config.get_text_config(), torch.Generator().manual_seed(0)
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    # Of 11 blocks: what is first compiled for as many as there are heads serves no other number.
    asked = torch.arange(500) < torch.tensor([[300], [500], [350]])
    packing = pack(torch.zeros(3, 650, dtype=torch.int64), torch.full((3,), 150), asked)
    mask = block_mask(in_blocks(packing), causal_lm.device)
    states = [
        torch.randn(1, mask.shape[-1], count, size, generator=generator)
        .to(causal_lm.device, dtype)
        .transpose(1, 2)
        .requires_grad_()
        for count in (heads, key_heads, key_heads)
    ]
    for found, expected in zip(
        _with_gradients(_flex, states, mask), _with_gradients(_dense, states, mask), strict=True
    ):
        difference = float((found - expected).float().norm() / expected.float().norm())
        if not difference < KERNEL_TOLERANCE:
            raise not_packed(f"flex attention is wrong by {difference:.2g} here, {heads} heads of {size}")


def _with_gradients(attention: Callable[..., Tensor], states: list[Tensor], mask: BlockMask) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        output = attention(*states, mask, states[0].shape[-1] ** -0.5)
        return output.detach(), *torch.autograd.grad(output.float().square().sum(), states)


def _flex(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float | None) -> Tensor:
    """[1, H, N, D] of queries, keys and values with heads before positions."""
    query, key = query.to(value.dtype), key.to(value.dtype)  # autocast leaves them in float32 after their rotation
    with torch.autocast(query.device.type, enabled=False):  # torch would compile anew for it
        output: Tensor = _compiled()(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)
    return output


def _dense(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float | None) -> Tensor:
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=dense_mask(mask), scale=scale, enable_gqa=True
    )


@cache
def _compiled() -> Callable[..., Any]:
    # Without fullgraph torch would go on with a version that stores all scores where it has compiled too often.
    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=True, fullgraph=True)
    return compiled


def _ordered(blocks: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """How many blocks of keys each block of queries has, [1, 1, n], and which, these first, [1, 1, n, n]."""
    counts = blocks.sum(dim=1, dtype=torch.int32)
    indices = blocks.int().argsort(dim=1, descending=True, stable=True).int()
    return counts[None, None].to(device), indices[None, None].to(device)
