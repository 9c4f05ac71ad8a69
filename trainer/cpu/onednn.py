"""Float32 linear layers multiplied by oneDNN, on processors with AVX-512 that are not Intel's.

torch gives float32 matrix products on a CPU to MKL, which uses no AVX-512 on those; oneDNN, which torch brings
along too, does. A step of `benchmarks/grpo_step.py` without it takes 1.21 times as long where MKL is kept from
AVX-512 (emulated on an Intel Xeon by MKL_ENABLE_INSTRUCTIONS=AVX2), 0.98 times on that Xeon as it is, and 0.89
times where all libraries are kept to AVX2; so it is used on the first kind alone.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

# oneDNN prepares code for every new shape (about 1 ms), which smaller products never earn back.
MIN_WEIGHT = 2**15
MIN_PRODUCT = 2**22
# oneDNN's own product for weight gradients copies both factors, but faster than torch transposes one: measured to
# pay for many rows, where the wider factor is at most twice as wide as the other.
MIN_ROWS_TO_COPY = 2**11


class OneDnnLinear(nn.Linear):
    """A linear layer that computes with `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """``input @ weight.T + bias``."""
        return linear(input, self.weight, self.bias)


def use_onednn(model: nn.Module) -> None:
    """Let the plain linear layers of a model compute with `linear`; parameters and their names stay."""
    if not mkl_leaves_avx512_unused():
        return
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = OneDnnLinear


@cache
def mkl_leaves_avx512_unused() -> bool:
    """Whether this is a processor with AVX-512 that is not Intel's, and oneDNN is there."""
    processor = Path("/proc/cpuinfo")
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and processor.is_file()
        and "GenuineIntel" not in processor.read_text(encoding="utf-8")
    )


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, by oneDNN where that is faster: large float32 products on a CPU.

    Args:
        input: [..., K].
        weight: [N, K].
        bias: [N].
    """
    if not _is_faster(input, weight):
        return functional.linear(input, weight, bias)
    rows = input.reshape(-1, input.shape[-1])
    output: Tensor
    if torch.is_grad_enabled() and (rows.requires_grad or weight.requires_grad):
        output = _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    else:
        output = _product(rows, weight, bias)
    return output.view(*input.shape[:-1], -1)


def repeated_linear(layers: Sequence[tuple[Tensor, Tensor | None]], rows: int) -> Callable[[Tensor], Tensor]:
    """A function to be called many times while weights stay: the layers' outputs for one input, side by side.

    The weights are joined and, where oneDNN multiplies them, arranged for it once instead of in every call.

    Args:
        layers: weight [N, K] and bias [N] of linear layers on a CPU, of one input size.
        rows: of the inputs, [rows, K]; they may become fewer.
    """
    weight = torch.cat([own.detach() for own, _ in layers])
    if torch.is_autocast_enabled("cpu"):
        weight = weight.to(torch.get_autocast_dtype("cpu"))  # once, not in every call
    bias: Tensor | None = None
    if any(own is not None for _, own in layers):
        bias = torch.cat(
            [weight.new_zeros(len(own_weight)) if own is None else own.detach() for own_weight, own in layers]
        )
    if not _is_faster(weight.new_empty(rows, weight.shape[1]), weight):
        return partial(functional.linear, weight=weight, bias=bias)
    arranged = torch.ops.mkldnn._reorder_linear_weight(weight, rows)

    def multiply(input: Tensor) -> Tensor:
        if _is_faster(input, weight):
            return _product(input, arranged, bias)
        return functional.linear(input, weight, bias)

    return multiply


def copies_pay() -> bool:
    """Whether `repeated_linear` has weights that are faster than the layers' own: of other dtype or order."""
    return torch.is_autocast_enabled("cpu") or mkl_leaves_avx512_unused()


def add_weight_gradient(total: Tensor, grad_output: Tensor, rows: Tensor) -> None:
    """Add the weight gradient ``grad_output.T @ rows`` of a linear layer to ``total`` in float32, on any device.

    Args:
        total: [N, K] float32.
        grad_output: [n, N], of any floating dtype.
        rows: [n, K], of the same.
    """
    if grad_output.dtype == torch.float32:
        if _is_faster(rows, total):
            total += _weight_gradient(grad_output, rows)
        else:
            total.addmm_(grad_output.t(), rows)
    elif grad_output.device.type == "cuda":
        torch.addmm(total, grad_output.t(), rows, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(grad_output.t().float(), rows.float())


def _is_faster(input: Tensor, weight: Tensor) -> bool:
    rows = input.numel() // max(1, input.shape[-1])
    return (
        weight.numel() >= MIN_WEIGHT
        and rows * weight.numel() >= MIN_PRODUCT
        and input.device.type == "cpu"
        and input.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and mkl_leaves_avx512_unused()
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
        wants_input, wants_weight, wants_bias = ctx.needs_input_grad
        grad_output = grad_output.contiguous()
        return (
            _product(grad_output, weight.t()) if wants_input else None,
            _weight_gradient(grad_output, rows) if wants_weight else None,
            grad_output.sum(dim=0) if wants_bias else None,
        )


def _weight_gradient(grad_output: Tensor, rows: Tensor) -> Tensor:
    """``grad_output.T @ rows``, [N, K]; if only one of them is copied, transposed, it is the smaller."""
    outputs, inputs = grad_output.shape[1], rows.shape[1]
    if len(rows) >= MIN_ROWS_TO_COPY and max(outputs, inputs) <= 2 * min(outputs, inputs):
        return _weight_gradient_of_copies(grad_output, rows)
    if outputs <= inputs:
        return _product(grad_output.t(), rows.t())
    return _product(rows.t(), grad_output.t()).t()


def _weight_gradient_of_copies(grad_output: Tensor, rows: Tensor) -> Tensor:
    shape_only = torch.empty(grad_output.shape[1], rows.shape[1], layout=torch._mkldnn)  # type: ignore[attr-defined]
    gradient: Tensor = torch.ops.aten.mkldnn_linear_backward_weights(
        grad_output.to_mkldnn(), rows.to_mkldnn(), shape_only, False
    )[0]
    return gradient.to_dense()


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``rows @ weight.T + bias``."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows.contiguous(), weight, bias, "none", [], "")
    return product
