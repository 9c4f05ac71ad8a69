import io
from types import SimpleNamespace

import pytest

from loptune.terminal.progress_lines import Progress, evaluation_line, learning_warning, step_line

METRICS = {
    "rollout/reward": 1.25,
    "rollout/accuracy": 0.625,
    "policy/kl": 0.00123,
    "policy/entropy": 0.41,
    "policy/clip_fraction": 0.0125,
    "rollout/completion_length": 88.4,
    "optim/grad_norm": 0.317,
    "time/tokens_per_s": 12345.6,
    "time/step": 3.14,
    "time/rollout": 2.0,
    "time/update": 1.0,
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_step_line_shows_the_figures_in_a_hundred_columns():
    assert step_line(7, 60, METRICS) == (
        "step  7/60  reward 1.250  acc 0.625  kl 0.0012  entropy 0.41  len 88  grad 0.32  12346 "
        "tok/s  3.14 s"
    )


def test_evaluation_line_shows_the_accuracy_of_each_difficulty():
    metrics = {
        "eval/accuracy": 0.5,
        "eval/reward": 0.1,
        "eval/accuracy/3 people": 0.4,
        "eval/accuracy/2 people": 0.6,
    }
    assert evaluation_line(20, metrics) == (
        "eval at step 20  accuracy 0.500  reward 0.100  [2 people 0.600, 3 people 0.400]"
    )


def test_a_file_gets_plain_lines():
    stream = io.StringIO()
    progress = Progress(stream)
    progress.phase("loading the data")
    progress.begin(2, 0)
    progress.phase("sampling", 8, announce=False)
    progress.completed(8)
    progress.step(1, {"rollout/reward": 0.5})
    progress.phase("evaluating at step 1", 40)
    progress.evaluation(1, {"eval/accuracy": 0.25})
    progress.close()
    assert stream.getvalue().splitlines() == [
        "loading the data",
        "step 1/2  reward 0.500",
        "evaluating at step 1: 40 completions",
        "eval at step 1  accuracy 0.250",
    ]


def test_a_long_phase_without_a_count_has_no_time_left(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(
        "loptune.terminal.progress_lines.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    stream = io.StringIO()
    progress = Progress(stream)
    progress.phase("checking model and checkpoint")
    now[0] += 40
    progress.completed(6)
    assert stream.getvalue().splitlines()[1:] == ["  checking model and checkpoint: 6 done"]


def test_a_long_phase_is_reported_in_between(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(
        "loptune.terminal.progress_lines.time", SimpleNamespace(monotonic=lambda: now[0])
    )
    stream = io.StringIO()
    progress = Progress(stream)
    progress.phase("evaluating at step 0", 400)
    for seconds, count in ((20, 50), (20, 50), (5, 10)):
        now[0] += seconds
        progress.completed(count)
    assert stream.getvalue().splitlines()[1:] == [
        "  evaluating at step 0: 100 of 400, 2.5/s, about 120 s left"
    ]


@pytest.mark.parametrize(
    ("fractions", "warned"), [([1, 1, 1, 1], True), ([1, 1, 0.9, 1, 1, 1], False)]
)
def test_rewards_without_differences_are_warned_of_once(fractions, warned, caplog):
    stream = io.StringIO()
    progress = Progress(stream)
    for step, fraction in enumerate(fractions, start=1):
        progress.step(step, {"rollout/zero_variance_groups": fraction})
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == warned


def test_a_terminal_gets_the_lines_and_a_bar():
    stream = Terminal()
    progress = Progress(stream)
    progress.begin(4, 0)
    progress.phase("evaluating", 7)
    progress.completed(5)
    progress.step(3, {"rollout/reward": 0.5})
    progress.close()
    assert "step 3/4  reward 0.500" in stream.getvalue()
    assert "training" in stream.getvalue() and "3/4" in stream.getvalue().replace("step 3/4", "")
    assert "evaluating" in stream.getvalue() and "5/7" in stream.getvalue()


@pytest.mark.parametrize(
    ("metrics", "key"),
    [
        ({"rollout/importance_cut": 0.6, "optim/updates": 2}, "algorithm.rollout_correction"),
        (
            {
                "rollout/importance_cut": 0.2,
                "optim/updates": 0,
                "rollout/zero_variance_groups": 0.5,
            },
            "algorithm.mask_truncated",
        ),
        (
            {
                "rollout/importance_cut": 0.5,
                "optim/updates": 2,
                "rollout/zero_variance_groups": 0.5,
            },
            None,
        ),
        # has a warning of its own
        ({"optim/updates": 0, "rollout/zero_variance_groups": 1.0}, None),
    ],
)
def test_a_step_that_learns_little_is_warned_of_with_the_key(metrics, key):
    warning = learning_warning(3, metrics)
    assert (key in warning and "step 3" in warning) if key else warning is None


def test_the_first_step_beyond_the_launchers_limit_is_reported_once(monkeypatch, caplog):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setattr("psutil.Process.cmdline", lambda process: ["torchrun"])
    progress = Progress(io.StringIO())
    for seconds in (3.0, 40.0, 50.0):
        progress.step(1, METRICS | {"time/step": seconds})
    progress.close()
    [warning] = [text for text in caplog.messages if "--shutdown-timeout 900" in text]
    assert "40 s" in warning
