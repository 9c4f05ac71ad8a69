"""Float32 linear layers by oneDNN, on processors with AVX-512 that are not Intel's.

torch gives float32 matrix products on a CPU to MKL, which uses no AVX-512 on such a processor; oneDNN, which torch
brings along too, does. Elsewhere the layers stay as they are. On an AMD EPYC a step of
`benchmarks/grpo_step.py --prompt-tokens 297` takes 2.67 s, and 3.95 s without it.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

# oneDNN prepares code for every new shape (about 1 ms), which smaller products never earn back.
_MIN_WEIGHT = 2**15
_MIN_PRODUCT = 2**22


class OneDnnLinear(nn.Linear):
    """A linear layer on another's weight and bias whose large float32 products oneDNN computes."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, input: Tensor) -> Tensor:
        """``input @ weight.T + bias``."""
        rows = input.reshape(-1, input.shape[-1])
        if not _is_large(rows, self.weight):
            return functional.linear(input, self.weight, self.bias)
        output: Tensor = _Linear.apply(rows, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return output.view(*input.shape[:-1], -1)


def use_onednn(model: nn.Module) -> None:
    """Compute the plain linear layers of a model by oneDNN where that is faster; parameters and names stay."""
    if not _mkl_leaves_avx512_unused():
        return
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, OneDnnLinear(child))


@cache
def _mkl_leaves_avx512_unused() -> bool:
    processor = Path("/proc/cpuinfo")
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and processor.is_file()
        and "GenuineIntel" not in processor.read_text(encoding="utf-8")
    )


def _is_large(rows: Tensor, weight: Tensor) -> bool:
    return (
        weight.numel() >= _MIN_WEIGHT
        and len(rows) * weight.numel() >= _MIN_PRODUCT
        and rows.device.type == "cpu"
        and rows.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
    )


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return _product(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        wants_rows, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            _product(grad_output, weight.t()) if wants_rows else None,
            _product(grad_output.t(), rows.t()) if wants_weight else None,
            grad_output.sum(dim=0) if wants_bias else None,
        )


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``rows @ weight.T + bias``."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows.contiguous(), weight, bias, "none", [], "")
    return product
