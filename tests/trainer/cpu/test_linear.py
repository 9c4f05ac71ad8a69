import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.conftest import random_model
from tests.rounding import sum_tolerance
from trainer.config.model import ModelConfig
from trainer.cpu import linear
from trainer.cpu.linear import OneDnnLinear
from trainer.policy.load import load_policy
from trainer.rollouts.shared_prefix import is_supported

ROWS, OUTPUTS, INPUTS = 300, 256, 160  # above both sizes from which oneDNN is used


@pytest.fixture(autouse=True)
def processor_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_mkl_leaves_avx512_unused", lambda: True)


def layer_and_rows(outputs: int = OUTPUTS, bias: bool = True) -> tuple[nn.Linear, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(INPUTS, outputs, bias=bias), torch.randn(3, ROWS // 3, INPUTS)


def output_and_gradients(layer: nn.Module, rows: torch.Tensor) -> list[torch.Tensor]:
    rows = rows.clone().requires_grad_()
    output = layer(rows)
    (output * torch.linspace(-1, 1, output.shape[-1], dtype=output.dtype)).sum().backward()
    return [output.detach(), rows.grad, *(parameter.grad for parameter in layer.parameters())]


@pytest.mark.parametrize("bias", [True, False])
def test_output_and_gradients_are_those_of_float64(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, rows = layer_and_rows(bias=bias)
    by_torch = output_and_gradients(copy.deepcopy(layer).double(), rows.double())
    monkeypatch.setattr(functional, "linear", None)
    ours = output_and_gradients(OneDnnLinear(layer), rows)
    for found, expected, terms in zip(ours, by_torch, (INPUTS, OUTPUTS, ROWS, ROWS), strict=False):
        # every term is a product of numbers whose mean square is at most 1
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=sum_tolerance(terms, terms))


def test_weights_that_are_not_trained_get_no_gradient() -> None:
    layer, rows = layer_and_rows()
    rows.requires_grad_()
    OneDnnLinear(layer.requires_grad_(False))(rows).sum().backward()
    expected = layer.weight.sum(dim=0).expand_as(rows)
    torch.testing.assert_close(rows.grad, expected, rtol=0, atol=sum_tolerance(OUTPUTS, OUTPUTS))
    assert layer.weight.grad is None and layer.bias.grad is None


@pytest.mark.parametrize(
    ("rows", "outputs", "dtype"),
    [(2, OUTPUTS, torch.float32), (ROWS, 16, torch.float32), (ROWS, OUTPUTS, torch.bfloat16)],
)
def test_small_products_and_other_dtypes_are_left_to_torch(rows: int, outputs: int, dtype: torch.dtype) -> None:
    layer, x = layer_and_rows(outputs)
    layer, x = layer.to(dtype), x.flatten(0, 1)[:rows].to(dtype)
    assert torch.equal(OneDnnLinear(layer)(x), layer(x))


def test_autocast_still_lowers_the_precision() -> None:
    layer, rows = layer_and_rows()
    with torch.autocast("cpu", torch.bfloat16):
        assert OneDnnLinear(layer)(rows).dtype == torch.bfloat16


def test_a_loaded_models_layers_are_replaced_and_its_weights_stay(random_policy: Path) -> None:
    model = load_policy(ModelConfig(name_or_path=str(random_policy)), torch.device("cpu"))
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert len(layers) > 2 and {type(layer) for layer in layers} == {OneDnnLinear}
    assert list(model.state_dict()) == list(random_model().state_dict())
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight  # tied
    assert is_supported(model)
