import sys
from types import SimpleNamespace

import torch

from loptune.errors import MissingError
from tests.refusals import refused
from tests.trainer.parallel.test_deepspeed import config
from trainer.parallel import strategy
from trainer.parallel.ranks import Parallel
from trainer.parallel.strategy import make_parallel


def test_one_process_is_a_world_of_its_own(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name in ("none", "ddp"):
        parallel = make_parallel(config(strategy=name))
        assert type(parallel) is Parallel
        assert (parallel.rank, parallel.world_size, parallel.is_main) == (0, 1, True)
    assert parallel.gather([3, 1, 2]) == [3, 1, 2]
    assert parallel.sum(torch.tensor([2.0])).tolist() == [2.0]
    assert [parallel.any(True), parallel.any(False)] == [True, False]


def test_a_missing_deepspeed_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with refused("missing-extra", MissingError):
        make_parallel(config(strategy="deepspeed"))


def test_the_device_is_chosen_before_deepspeed_is_imported(monkeypatch):
    """DeepSpeed takes a GPU that it sees as it is imported, whatever the configuration says."""
    chosen = []
    monkeypatch.setattr(strategy, "local_device", chosen.append)
    monkeypatch.setitem(
        sys.modules,
        "trainer.parallel.deepspeed",
        SimpleNamespace(DeepSpeedParallel=lambda _: chosen),
    )
    assert make_parallel(config(strategy="deepspeed", device="cpu")) == ["cpu"]
