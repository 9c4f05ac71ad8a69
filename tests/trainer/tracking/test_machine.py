"""System metrics: MLflow's names and values, in our record, from a thread that there is anyway."""

import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import pytest

from tests.trainer.tracking.store import config_for, context_for, history, lines_of, sqlite_store
from trainer.tracking import machine
from trainer.tracking import tracker as tracking
from trainer.tracking.machine import MachineGauges
from trainer.tracking.tracker import Tracker

CPU = "system/cpu_utilization_percentage"


def read(gauges: MachineGauges, times: int = 1) -> None:
    for _ in range(times + 1):  # the first makes the gauges
        gauges.read()


def test_the_names_are_those_of_mlflow_and_values_come_once_in_an_interval(monkeypatch):
    gauges = MachineGauges()
    assert gauges.means() == {}
    gauges.read()
    assert gauges.means() == {}  # of no time at all
    gauges.read()
    found = gauges.means()
    assert set(found) >= {
        CPU,
        "system/system_memory_usage_megabytes",
        "system/system_memory_usage_percentage",
        "system/disk_usage_percentage",
        "system/disk_available_megabytes",
        "system/network_receive_megabytes",
        "system/network_transmit_megabytes",
    }
    assert all(0 <= value <= 100 for name, value in found.items() if name.endswith("percentage"))
    gauges.read()
    assert gauges.means() == {}
    monkeypatch.setattr(machine, "INTERVAL_S", 0.0)
    assert set(gauges.means()) == set(found)
    assert gauges.means() == {}  # nothing was read since


def fake_nvml(uses: list[int]) -> ModuleType:
    module = ModuleType("pynvml")
    for name in ("nvmlInit", "nvmlDeviceGetHandleByIndex"):
        setattr(module, name, lambda *_: None)
    module.__dict__.update(
        NVMLError=type("NVMLError", (Exception,), {}),
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=40e9, total=80e9),
        nvmlDeviceGetUtilizationRates=lambda _: SimpleNamespace(gpu=uses.pop(0)),
        nvmlDeviceGetPowerUsage=lambda _: 350_000,
        nvmlDeviceGetEnforcedPowerLimit=lambda _: 700_000,
    )
    return module


def test_the_use_of_gpus_is_the_mean_over_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.system_metrics.metrics import gpu_monitor

    nvml = fake_nvml([7, 90, 60])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(gpu_monitor, "pynvml", nvml, raising=False)
    gauges = MachineGauges()
    read(gauges, 2)
    found = gauges.means()
    assert found["system/gpu_0_utilization_percentage"] == 75
    assert found["system/gpu_0_memory_usage_percentage"] == 50
    assert found["system/gpu_0_power_usage_watts"] == 350
    read(gauges)  # nothing is left to read: the gauge fails, and the others go on
    monkeypatch.setattr(machine, "INTERVAL_S", 0.0)
    assert CPU in gauges.means()


def until_logged(tracker: Tracker, step: int) -> None:
    """Log the step until a line has what the machine does."""
    deadline = time.monotonic() + 30
    while not any(CPU in line for line in lines_of(tracker.run_dir) if line["step"] == step):
        assert time.monotonic() < deadline
        tracker.log({"policy/loss": 1.0}, step)
        time.sleep(0.02)


def test_a_run_that_is_rewound_and_resumed_has_every_value_once(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "INTERVAL_S", 0.0)
    monkeypatch.setattr(tracking, "SHIP_INTERVAL_S", 0.02)
    uri = sqlite_store(tmp_path)
    before = set(threading.enumerate())
    first = Tracker(config_for(uri), context_for(tmp_path))
    for step in (1, 2):
        until_logged(first, step)
    first.close("KILLED")
    second = Tracker(config_for(uri), context_for(tmp_path))
    second.rewind(1)
    until_logged(second, 2)
    assert second.close("FINISHED") is True
    assert {thread.name for thread in set(threading.enumerate()) - before} == set()
    run_id = second.run_id
    assert run_id is not None
    sent = history(uri, run_id, CPU)
    assert {step for step, _ in sent} == {1, 2}
    of_first = [line[CPU] for line in lines_of(second.run_dir) if line["step"] == 1 and CPU in line]
    assert [value for step, value in sent if step == 1] == of_first


def test_offline_runs_and_those_that_do_not_want_it_have_none(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "INTERVAL_S", 0.0)
    monkeypatch.setattr(tracking, "SHIP_INTERVAL_S", 0.01)
    uri = sqlite_store(tmp_path)
    offline, unwanted = config_for(uri, offline=True), config_for(uri, system_metrics=False)
    for name, config in (("offline", offline), ("unwanted", unwanted)):
        tracker = Tracker(config, context_for(tmp_path / name))
        for step in range(10):
            tracker.log({"policy/loss": 1.0}, step)
            time.sleep(0.02)
        tracker.close()
        assert not [key for line in lines_of(tracker.run_dir) for key in line if key.startswith("system/")]
