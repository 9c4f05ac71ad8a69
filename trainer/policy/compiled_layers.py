"""Decoder layers compiled with torch.compile, the same code for scoring, update and reference."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from loptune.errors import ConfigError

# Shapes are dynamic, so a model needs few variants: several rows or one, policy or reference.
# Models of several trials may share a process. torch raises beyond this limit.
_MOST_VARIANTS = 64


class CompiledLayers:
    """The decoder layers of one model, compiled in place.

    Before the first update, policy and reference must be bitwise equal, and so must scoring and the
    update; but a graph compiled for inference fuses different operations than a training graph.
    Every forward pass without a cache therefore runs the training graph. Without gradients, each
    layer's saved activations are freed before the next layer. Sampling, which has a cache, is not
    compiled.

    Raises:
        ConfigError: the model has no decoder layers that could be compiled.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        layers = [
            module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
        ]
        if not layers:
            raise ConfigError(
                f"{type(model).__name__} has no decoder layers that could be compiled",
                "model.compile",
                "use model.compile=none",
                key="model.compile",
                code="no-layers-to-compile",
            )
        self._is_on = True
        for layer in layers:
            # The graph depends on which tensors require gradients. The reference's gradients are
            # never computed, because `_run` detaches its outputs.
            layer.requires_grad_(True)
            layer.forward = partial(self._run, layer)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Run the original layers, without compiling."""
        self._is_on = False
        try:
            yield
        finally:
            self._is_on = True

    def _run(self, layer: nn.Module, hidden_states: Tensor, **options: Any) -> Any:
        """Run a layer on [b, L, H]; ``options`` are the arguments that transformers passes."""
        forward = type(layer).forward
        has_cache = any(isinstance(value, Cache) for value in options.values())
        if not self._is_on or has_cache:
            return forward(layer, hidden_states, **options)
        compiled = _compiled(forward)
        if torch.is_grad_enabled():
            return compiled(layer, hidden_states, **options)
        with torch.enable_grad():
            output = compiled(layer, hidden_states.detach().requires_grad_(), **options)
        return output.detach()


@cache
def _compiled(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the forward function of a class of layers."""
    compiled: Callable[..., Any] = torch.compile(  # type: ignore[call-overload]  # recompile_limit
        forward,
        # raise if a part cannot be compiled or there are too many variants, instead of falling back
        # to slower code
        fullgraph=True,
        dynamic=True,
        # round between fused operations, as without fusion
        options={"emulate_precision_casts": True},
        recompile_limit=_MOST_VARIANTS,
    )
    return compiled
