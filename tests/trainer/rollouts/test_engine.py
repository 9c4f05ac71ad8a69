import inspect

import pytest

from trainer.rollouts.engine import NO_RUN, RolloutEngine, SamplingParams
from trainer.rollouts.transformers import TransformersEngine
from trainer.rollouts.vllm.engine import VllmEngine
from trainer.rollouts.vllm.server import VllmServerEngine

ENGINES = [TransformersEngine, VllmEngine, VllmServerEngine]
METHODS = {
    name: [parameter.name for parameter in inspect.signature(method).parameters.values()]
    for name, method in inspect.getmembers(RolloutEngine, inspect.isfunction)
    if not name.startswith("_")
}


@pytest.mark.parametrize(
    "kind", [TransformersEngine, VllmEngine, VllmServerEngine], ids=lambda kind: kind.__name__
)
def test_every_engine_is_asked_alike(kind):
    assert set(METHODS) == {"sync_weights", "generate", "sleep", "wake", "metrics", "close"}
    for name, parameters in METHODS.items():
        theirs = inspect.signature(getattr(kind, name)).parameters.values()
        assert [parameter.name for parameter in theirs] == parameters, name


def test_a_run_that_says_nothing_is_told_nothing():
    assert (NO_RUN.check_ids, NO_RUN.log_file, NO_RUN.is_one_of_many) == ((), None, False)
    assert NO_RUN.on_finished(3) is None


def test_by_default_no_token_is_dropped():
    params = SamplingParams(temperature=0.7)
    assert (params.top_p, params.top_k, params.min_p) == (1.0, 0, 0.0)
