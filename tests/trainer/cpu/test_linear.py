import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from trainer.cpu import linear as onednn
from trainer.cpu.linear import MIN_PRODUCT, OneDnnLinear, linear, side_by_side, use_onednn

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN"
)


@pytest.fixture(autouse=True)
def on_amd(monkeypatch):
    """Compute in oneDNN on any processor."""
    monkeypatch.setattr(onednn, "is_faster_in_onednn", lambda: True)


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def assert_close(actual, expected):
    """Compare float32 with float64, relative to the largest value."""
    error = (actual.double() - expected).abs().max() / expected.abs().max()
    assert error < 2e-6


def gradients(function, x, weight, bias, grad_output):
    inputs = [values.detach().clone().requires_grad_() for values in (x, weight, bias)]
    output = function(*inputs)
    output.backward(grad_output)
    return [output.detach(), *(values.grad for values in inputs)]


@pytest.mark.parametrize("rows", [3, 15, 16, 129, 700])
@pytest.mark.usefixtures("threads")
def test_outputs_and_gradients_are_those_of_a_linear_layer(rows):
    n_inputs, n_outputs = 160, MIN_PRODUCT // 160 // 3 + 7
    assert 3 * n_inputs * n_outputs >= MIN_PRODUCT  # large enough for oneDNN
    generator = torch.Generator().manual_seed(rows)
    shapes = [(rows, n_inputs), (n_outputs, n_inputs), (n_outputs,), (rows, n_outputs)]
    values = [torch.randn(shape, generator=generator) for shape in shapes]

    actual = gradients(linear, *values)

    expected = gradients(functional.linear, *(value.double() for value in values))
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, other)


def test_leading_dimensions_and_a_transposed_weight():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 300, generator=generator)
    weight = torch.randn(300, 500, generator=generator)

    output = linear(x, weight.t())

    assert output.shape == (2, 5, 500)
    assert_close(output, x.double() @ weight.double())


def test_only_wanted_gradients_are_computed():
    x = torch.randn(64, 256, requires_grad=True)
    weight = torch.randn(256, 256)

    linear(x, weight).sum().backward()

    assert weight.grad is None
    assert_close(x.grad, weight.double().sum(dim=0).expand(64, 256))


@pytest.mark.parametrize("case", ["small", "bfloat16", "autocast", "another processor"])
def test_other_products_are_left_to_torch(monkeypatch, case):
    monkeypatch.setattr(onednn, "_product", None)  # raises if called
    if case == "another processor":
        monkeypatch.setattr(onednn, "is_faster_in_onednn", lambda: False)
    x = torch.randn(8 if case == "small" else 64, 256)
    weight = torch.randn(256, 256)
    if case == "bfloat16":
        x, weight = x.bfloat16(), weight.bfloat16()

    with torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"):
        assert torch.equal(linear(x, weight), functional.linear(x, weight))


def test_a_model_keeps_its_weights_and_other_layers():
    class Scaled(nn.Linear):
        """A linear layer of another kind."""

    model = nn.Sequential(nn.Linear(256, 256), nn.SiLU(), Scaled(256, 64))
    weights = copy.deepcopy(model.state_dict())

    use_onednn(model)

    assert [type(layer) for layer in model] == [OneDnnLinear, nn.SiLU, Scaled]
    assert model.state_dict().keys() == weights.keys()
    assert all(torch.equal(model.state_dict()[name], weights[name]) for name in weights)
    x = torch.randn(64, 256)
    expected = functional.linear(x.double(), weights["0.weight"].double(), model[0].bias.double())
    assert_close(model[0](x), expected)


def test_sharded_parameters_are_left_alone():
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(torch.empty(0))  # as ZeRO stage 3 leaves it

    use_onednn(nn.Sequential(layer))

    assert type(layer) is nn.Linear


@pytest.mark.parametrize("kind", [OneDnnLinear, nn.Linear])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 64])
def test_layers_side_by_side_are_the_layers_one_after_the_other(kind, bias, rows):
    layers = [kind(256, size, bias=bias) for size in (256, 64, 64)]
    x = torch.randn(rows, 256)

    with torch.inference_mode():
        together = side_by_side(layers, rows)(x)

    expected = torch.cat(
        [
            functional.linear(
                x.double(), layer.weight.double(), layer.bias.double() if bias else None
            )
            for layer in layers
        ],
        dim=-1,
    ).detach()
    assert_close(together, expected)


def test_layers_side_by_side_follow_autocast():
    layers = [OneDnnLinear(256, 256) for _ in range(2)]
    x = torch.randn(64, 256)

    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        together = side_by_side(layers, 64)(x)
        expected = [functional.linear(x, layer.weight, layer.bias) for layer in layers]

    assert torch.equal(together, torch.cat(expected, dim=-1))
    assert together.dtype == torch.bfloat16
