"""`tracking.report_to`: the metrics of a run in TensorBoard, and in programs with the interface of
W&B.
"""

import sys
import types
from importlib.machinery import ModuleSpec

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from loptune.errors import ConfigError
from tests.refusals import refused
from trainer.config.schema import load_config
from trainer.tracking import writers
from trainer.tracking.tracker import Tracker
from trainer.types import RunContext


def config_of(*names):
    return load_config("tiny_kk", {"tracking.report_to": list(names), "tracking.offline": True})


def scalars(folder, name):
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


@pytest.fixture
def calls(monkeypatch):
    """A program called wandb that notes what it is asked; `fail` makes its log fail from that step
    on.
    """
    seen = types.SimpleNamespace(init=[], log=[], finished=0, fail=None)

    class Run:
        def log(self, metrics, step):
            if seen.fail is not None and step >= seen.fail:
                raise OSError("no network")
            seen.log.append((step, metrics))

        def finish(self):
            seen.finished += 1

    def init(**settings):
        seen.init.append(settings)
        return Run()

    module = types.ModuleType("wandb")
    module.init = init
    module.__spec__ = ModuleSpec("wandb", None, origin="wandb.py")
    monkeypatch.setitem(sys.modules, "wandb", module)
    return seen


def test_tensorboard_has_every_step_once_after_a_resumption(tmp_path):
    context = RunContext.of(tmp_path / "run")
    first = Tracker(config_of("tensorboard"), context)
    for step in (1, 2, 3):
        first.log({"rollout/reward": step / 2}, step)
    first.close("KILLED")
    second = Tracker(config_of("tensorboard"), context)
    second.rewind(2)
    for step in (3, 4):
        second.log({"rollout/reward": float(step)}, step)
    second.close()
    assert scalars(tmp_path / "run", "rollout/reward") == [(1, 0.5), (2, 1.0), (3, 3.0), (4, 4.0)]


def test_wandb_gets_the_metrics_and_one_id_for_a_run(tmp_path, calls):
    context = RunContext.of(tmp_path / "run")
    for _ in range(2):
        tracker = Tracker(config_of("wandb"), context)
        tracker.log({"rollout/reward": 0.5}, 1)
        tracker.close()
    assert calls.log == [(1, {"rollout/reward": 0.5})] * 2
    assert calls.finished == 2
    first, second = calls.init
    assert (first["project"], first["name"], first["resume"]) == ("trainer", "run", "allow")
    assert first["config"]["algorithm"]["advantage"] == {"name": "grpo"}
    assert first["id"] == second["id"]


def test_a_writer_that_fails_is_left_out_and_the_run_goes_on(tmp_path, calls, caplog):
    calls.fail = 2
    tracker = Tracker(config_of("wandb", "tensorboard"), RunContext.of(tmp_path / "run"))
    for step in (1, 2, 3):
        tracker.log({"rollout/reward": 1.0}, step)
    assert tracker.close()
    assert [step for step, _ in calls.log] == [1]
    (warning,) = (record.message for record in caplog.records)
    assert "wandb" in warning and "no network" in warning
    assert [step for step, _ in scalars(tmp_path / "run", "rollout/reward")] == [1, 2, 3]


def test_missing_trackers_are_refused_before_the_run(tmp_path, calls, monkeypatch):
    context = RunContext.of(tmp_path / "run")
    with refused("tracker-not-installed", ConfigError, names=("trackio",)) as caught:
        Tracker(config_of("trackio"), context)
    assert (caught.value.where, caught.value.hint) == ("tracking.report_to", "pip install trackio")

    def refuse(**settings):
        raise RuntimeError("no API key")

    monkeypatch.setattr(sys.modules["wandb"], "init", refuse)
    with refused("tracker-failed", ConfigError, names=("no API key",)):
        Tracker(config_of("wandb"), context)


def test_a_folder_of_that_name_is_not_the_program(tmp_path, monkeypatch):
    (tmp_path / "trackio").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with refused("tracker-not-installed", ConfigError, names=("trackio",)):
        writers.Writers(config_of("trackio"), RunContext.of(tmp_path / "run"), "1")
