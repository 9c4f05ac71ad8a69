"""Microbatches as one sequence without padding, for flash-attention's varlen kernels.

transformers passes the rows' bounds on to flash-attention. With SDPA it builds a mask of all tokens
by all tokens from the positions instead, which is only for tests on a CPU. The CPU's own packed
rows, which share prompts, are in `trainer.cpu.packed_rows`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from loptune.errors import ConfigError

# attention kernels that take rows in one line; SDPA only on a CPU
_VARLEN = ("flash_attention_2", "flash_attention_3")


@dataclass(frozen=True)
class RowsInLine:
    """b rows packed into one line of N tokens, with the row and the position of each token."""

    rows: Tensor  # [N] row of each token
    positions: Tensor  # [N] position of each token in its row
    bounds: Tensor  # [b + 1] int32, the first token of each row, and N
    longest: int  # tokens of the longest row
    predicting: Tensor  # [M] token before each completion token, in row-major order

    def to(self, device: torch.device) -> "RowsInLine":
        """Return a copy with its tensors on a device."""
        tensors = (self.rows, self.positions, self.bounds, self.predicting)
        rows, positions, bounds, predicting = (
            tensor.to(device, non_blocking=True) for tensor in tensors
        )
        return RowsInLine(rows, positions, bounds, self.longest, predicting)


def check_kernel(model: PreTrainedModel) -> None:
    """Raise if rows in one line would need a mask of all tokens by all tokens on a GPU.

    Raises:
        ConfigError: the kernel would need such a mask.
    """
    kernel = model.config._attn_implementation
    if model.device.type == "cpu" or kernel in _VARLEN:
        return
    key = "model.packing"
    raise ConfigError(
        f"packing needs flash attention on a GPU, but model.attn_implementation is {kernel}",
        key,
        "set model.attn_implementation=flash_attention_2, or model.packing=false",
        key=key,
        code="packing-without-flash",
    )


def line_up(prompt_lengths: Tensor, completion_mask: Tensor) -> RowsInLine:
    """Concatenate rows. Each row ends before its last requested token.

    Args:
        prompt_lengths: [b].
        completion_mask: [b, T], mask of the completion tokens to predict. If both are on the host,
            the call does not synchronize with the device.
    """
    columns = torch.arange(1, completion_mask.shape[1] + 1, device=completion_mask.device)
    # completion tokens up to the last requested one
    last = (completion_mask.bool() * columns).amax(dim=1)
    lengths = prompt_lengths.to(last.device) + (last - 1).clamp_min(0)
    longest = int(lengths.max())
    bounds = torch.cat([lengths.new_zeros(1), lengths.cumsum(dim=0)])
    is_token = torch.arange(longest, device=lengths.device) < lengths[:, None]
    rows, positions = is_token.nonzero(as_tuple=True)
    asked_rows, asked_columns = completion_mask.nonzero(as_tuple=True)
    before = prompt_lengths.to(last.device)[asked_rows] + asked_columns - 1
    predicting = bounds[asked_rows] + before
    return RowsInLine(rows, positions, bounds.to(torch.int32), longest, predicting)


def hidden_states_in_line(model: PreTrainedModel, input_ids: Tensor, line: RowsInLine) -> Tensor:
    """Return the last hidden state before each completion token, [M, H], of rows ``input_ids``
    [b, L].
    """
    line = line.to(input_ids.device)
    hidden: Tensor = model.base_model(
        input_ids=input_ids[line.rows, line.positions][None],
        position_ids=line.positions[None],
        use_cache=False,
        # with the bounds, flash-attention need not find them, which would synchronize
        cu_seq_lens_q=line.bounds,
        cu_seq_lens_k=line.bounds,
        max_length_q=line.longest,
        max_length_k=line.longest,
    ).last_hidden_state
    return hidden[0].index_select(0, line.predicting)
