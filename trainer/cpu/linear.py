"""Linear layers of float32 models in oneDNN, on processors where torch's matrix product is slow.

torch multiplies float32 matrices with MKL, which uses AVX-512 on Intel processors only. oneDNN,
which torch uses for convolutions, also uses AVX-512 on AMD processors. On an AMD EPYC with AVX-512
and two threads, the products of `benchmarks/grpo_step.py` run at 380 to 490 GFLOP/s instead of 200.
Limited to AVX2 (by ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA and MKL_ENABLE_INSTRUCTIONS), they run
at 200 to 250. On Intel processors nothing changes.

Shapes: M rows, K input features, N output features.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

# smallest M * K * N that is computed by oneDNN: a call to oneDNN has about 10 microseconds more
# overhead than torch's own product, which is too much for smaller products
MIN_PRODUCT = 2**20
# with one thread, torch computes a 1x1 convolution of fewer images without oneDNN
_IMAGES = 16
_OPERATORS = ("_linear_pointwise", "_reorder_linear_weight")


@cache
def is_faster_in_onednn() -> bool:
    """Return whether oneDNN is available and faster than MKL, which uses only AVX2 on AMD
    processors.
    """
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()):
        return False
    # Two operators that torch's own compiler calls: no public function takes a weight in oneDNN's
    # layout.
    if not all(hasattr(torch.ops.mkldnn, name) for name in _OPERATORS):
        return False
    try:
        processors = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # not Linux
        return False
    return "AuthenticAMD" in processors


class OneDnnLinear(nn.Linear):
    """A linear layer that is computed by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input @ weight.T + bias``."""
        return linear(input, self.weight, self.bias)


def use_onednn(model: nn.Module) -> None:
    """Change a float32 model's plain linear layers to `OneDnnLinear` where that is faster, unless
    their parameters are sharded (ZeRO stage 3).
    """
    if not is_faster_in_onednn():
        return
    for module in model.modules():
        if type(module) is nn.Linear and module.weight.dim() == 2:
            module.__class__ = OneDnnLinear


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias`` like `torch.nn.functional.linear`, with oneDNN if it is
    faster.

    Other devices and dtypes, autocast and small products are left to torch.

    Args:
        x: [..., K].
        weight: [N, K].
        bias: [N].
    """
    is_float32 = x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
    is_large = x.numel() * weight.shape[0] >= MIN_PRODUCT
    is_cast = torch.is_autocast_enabled("cpu")
    if not (is_float32 and is_large and is_faster_in_onednn()) or is_cast:
        return functional.linear(x, weight, bias)
    output: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return output


def side_by_side(layers: Sequence[nn.Module], rows: int) -> Callable[[Tensor], Tensor]:
    """Return a function of x [M, K] that returns the outputs of linear layers as one tensor [M, N].

    It copies the weights of `OneDnnLinear` to oneDNN's own layout (not under autocast), so it is
    meant for many calls without gradients, between which the weights do not change.

    Args:
        layers: layers that take the same input.
        rows: M of most calls, for which oneDNN chooses the layout.
    """
    is_plain = all(type(layer) is OneDnnLinear for layer in layers)
    if is_plain and not torch.is_autocast_enabled("cpu"):
        return _PackedLinear(layers, rows)
    if len(layers) == 1:
        return layers[0]
    return lambda x: torch.cat([layer(x) for layer in layers], dim=-1)


class _PackedLinear:
    """Linear layers with constant weights in oneDNN's layout."""

    def __init__(self, layers: Sequence[Any], rows: int) -> None:
        self._weight = layers[0].weight
        self._bias = layers[0].bias
        if len(layers) > 1:
            self._weight = torch.cat([layer.weight for layer in layers])
            if self._bias is not None:
                self._bias = torch.cat([layer.bias for layer in layers])
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self._weight.detach(), rows)

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) * self._weight.numel() < MIN_PRODUCT:
            return functional.linear(x, self._weight, self._bias)
        return _product(x, self._packed, self._bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        rows = grad_output.flatten(0, -2)
        return (
            _product(grad_output, weight.t()) if wants_x else None,
            _weight_gradient(rows, x.flatten(0, -2)) if wants_weight else None,
            rows.sum(dim=0) if wants_bias else None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias`` for a weight in any layout."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def _weight_gradient(grad_output: Tensor, x: Tensor) -> Tensor:
    """Return ``grad_output.T @ x``, [N, K], from [M, N] and [M, K].

    It is computed as the weight gradient of a 1x1 convolution over images with M pixels in total,
    because oneDNN's matrix product is slow if both operands are transposed.
    """
    width = len(x) // _IMAGES
    pixels = width * _IMAGES
    channels = (grad_output.shape[1], x.shape[1])
    if width == 0:
        return grad_output.t() @ x
    # [M, channels] to [images, channels, 1, width], which is channels-last in memory
    output_images, input_images = (
        rows[:pixels].view(_IMAGES, 1, width, -1).permute(0, 3, 1, 2) for rows in (grad_output, x)
    )
    _, gradient, _ = torch.ops.aten.convolution_backward(
        output_images,
        input_images,
        x.new_empty(*channels, 1, 1),  # the weight: only its shape is read
        None,
        stride=[1, 1],
        padding=[0, 0],
        dilation=[1, 1],
        transposed=False,
        output_padding=[0, 0],
        groups=1,
        output_mask=[False, True, False],
    )
    weight_gradient: Tensor = gradient.view(channels)
    return weight_gradient.addmm_(grad_output[pixels:].t(), x[pixels:])
