"""The receiver against stand-ins for what it takes from vLLM, which record; needs no vLLM."""

import base64
import importlib
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Generic, TypeVar

import pytest
import torch
from safetensors.torch import save

from tests.paths import ROOT
from trainer.rollouts import vllm as package

A, B = TypeVar("A"), TypeVar("B")
NAME = "trainer.rollouts.vllm.receiver"


class Engine(Generic[A, B]):
    """As vLLM's base class: it makes the update's class of what a request says."""

    def parse_update_info(self, update_info):
        return self.update_info_cls(**update_info)


class Layer(torch.nn.Linear):
    """A layer that has got some of its weights."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.info = SimpleNamespace(loaded_weights=["a weight of an update that failed"], load_numel=1)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()
        self.loaded: dict[str, torch.Tensor] = {}
        self.fails = False

    def load_weights(self, weights) -> None:
        if self.fails:
            raise ValueError("no such weight")
        self.loaded |= dict(weights)


def layer_info(module: torch.nn.Module) -> SimpleNamespace:
    return getattr(module, "info", SimpleNamespace(loaded_weights=[], load_numel=0))


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """What is asked of vLLM's loader, in order; stands in for vLLM while a test runs."""
    asked: list[str] = []
    registered = SimpleNamespace(_registry={})
    registered.register_engine = registered._registry.__setitem__
    names = {
        "vllm": {},
        "vllm.distributed": {},
        "vllm.distributed.weight_transfer": {"WeightTransferEngineFactory": registered},
        "vllm.distributed.weight_transfer.base": {
            "WeightTransferEngine": Engine,
            "WeightTransferInitInfo": type("WeightTransferInitInfo", (), {}),
            "WeightTransferUpdateInfo": type("WeightTransferUpdateInfo", (), {}),
        },
        "vllm.model_executor": {},
        "vllm.model_executor.model_loader": {},
        "vllm.model_executor.model_loader.reload": {
            "initialize_layerwise_reload": lambda model: asked.append("begin"),
            "finalize_layerwise_reload": lambda model, config: asked.append("end"),
        },
        "vllm.model_executor.model_loader.reload.layerwise": {"get_layerwise_info": layer_info},
    }
    for name, content in names.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(package, "receiver", None, raising=False)
    monkeypatch.setitem(sys.modules, NAME, None)  # so that what is imported below is taken back
    del sys.modules[NAME]
    return asked


@pytest.fixture
def receiver(calls):
    return importlib.import_module(NAME)


@pytest.fixture
def engine(receiver):
    engine = receiver.HttpWeightTransferEngine()
    engine.model, engine.model_config, engine.device = Model(), None, "cpu"
    return engine


def request_of(**weights: torch.Tensor) -> dict[str, str]:
    return {"safetensors": base64.b64encode(save(weights)).decode()}


def test_weights_of_several_requests_arrive_in_one_update(engine, calls):
    one, two = torch.tensor([1.5, -2.0]), torch.tensor([[3.0]], dtype=torch.bfloat16)
    engine.start_weight_update()
    engine.update_weights(request_of(one=one))
    engine.update_weights(request_of(two=two))
    assert calls == ["begin"]
    engine.finish_weight_update()
    assert calls == ["begin", "end"]
    assert torch.equal(engine.model.loaded["one"], one) and torch.equal(engine.model.loaded["two"], two)
    assert engine.model.layer.info.loaded_weights  # what a layer waits with is dropped after a failure alone


@pytest.mark.parametrize("request_", [{"safetensors": "bm90IHNhZmV0ZW5zb3Jz"}, request_of(odd=torch.ones(1))])
def test_an_update_that_fails_leaves_nothing_for_the_next(engine, calls, request_):
    engine.model.fails = True
    with pytest.raises(Exception, match=r"header|no such weight"):
        engine.update_weights(request_)
    assert calls == ["end"]
    info = engine.model.layer.info
    assert (info.loaded_weights, info.load_numel) == ([], 0)


def test_finishing_repacks_a_tied_output_embedding(engine):
    repacked = []
    method = SimpleNamespace(process_weights_after_loading=repacked.append)
    engine.model.lm_head = head = torch.nn.Identity()
    head.cpu_linear, head.quant_method = object(), method
    engine.finish_weight_update()
    assert repacked == [head]


def test_the_backend_is_registered_once(receiver):
    receiver.register()
    receiver.register()
    registry = receiver.WeightTransferEngineFactory._registry
    assert registry == {"loptune_http": receiver.HttpWeightTransferEngine}
    registry["loptune_http"] = "of an earlier call"
    receiver.register()
    assert registry["loptune_http"] == "of an earlier call"


def test_what_it_needs_of_the_project_imports_nothing_else():
    # Every process of a server imports it, in an environment that may not have what a trainer needs.
    code = (
        "import sys, trainer.rollouts.vllm.output; "
        "print(sorted(name for name in sys.modules if name.startswith('trainer')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    packages = ["trainer", "trainer.rollouts", "trainer.rollouts.vllm", "trainer.rollouts.vllm.output"]
    assert done.stdout.strip() == str(packages)
