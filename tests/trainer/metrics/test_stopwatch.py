import pytest

from trainer.metrics import stopwatch
from trainer.metrics.stopwatch import Stopwatch


def test_phases_add_up_nest_and_count_when_they_fail(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 4.0, 10.0, 12.5, 20.0, 20.25])
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: next(clock))
    watch = Stopwatch()
    with watch("step"), watch("rollout"):  # 0 to 4, 1 to 3
        pass
    with watch("rollout"):
        pass
    with pytest.raises(RuntimeError), watch("update"):
        raise RuntimeError
    assert watch.seconds == {"step": 4.0, "rollout": 2.0 + 2.5, "update": 0.25}


def test_both_ends_of_a_phase_wait_for_the_gpu(monkeypatch):
    events = []
    monkeypatch.setattr(stopwatch.torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(stopwatch.torch.cuda, "synchronize", lambda: events.append("wait"))
    with Stopwatch()("update"):
        events.append("work")
    assert events == ["wait", "work", "wait"]
