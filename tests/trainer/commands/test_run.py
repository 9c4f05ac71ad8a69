from dataclasses import replace
from types import SimpleNamespace

import pytest

from loptune.errors import DivergedError, StorageError
from trainer.commands import run
from trainer.commands.run import RunOutcome, report_outcome, run_training, schedule_warning
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.types import RunContext

OFFLINE = apply_overrides(TrainConfig(), {"tracking.offline": True, "tracking.tags": {"mine": "1"}})


class FakeTrainer:
    """Trains for no time, and ends as it is told to."""

    step = 3
    total_steps = 9
    models = SimpleNamespace(causal_lm=SimpleNamespace(config=None))
    request_stop = None
    zero_variance_steps = 0

    def __init__(self, ends):
        self.config = OFFLINE
        self.problems = [None]
        self.ends = ends
        self.done = False
        self.closed = []

    def resume(self):
        return 2

    def train(self):
        if isinstance(self.ends, BaseException):
            raise self.ends
        self.done = bool(self.ends)

    def close(self, status):
        self.closed.append(status)
        return True


def train(monkeypatch, tmp_path, ends):
    trainer = FakeTrainer(ends)
    monkeypatch.setattr(run, "_build", lambda *arguments: trainer)
    return run_training(OFFLINE, "r", tmp_path, resume=False), trainer


def test_a_run_interrupted_in_its_last_checkpoint_is_not_done(monkeypatch, tmp_path):
    trainer = FakeTrainer(KeyboardInterrupt())
    trainer.done = True
    monkeypatch.setattr(run, "_build", lambda *arguments: trainer)
    assert not run_training(OFFLINE, "r", tmp_path, resume=False).done


@pytest.mark.parametrize(
    ("ends", "status", "done"),
    [
        (True, "FINISHED", True),
        (False, "KILLED", False),
        (DivergedError(3, "loss", float("nan")), "FAILED", False),
        (KeyboardInterrupt(), "KILLED", False),
    ],
)
def test_a_run_is_closed_as_it_ended(monkeypatch, tmp_path, ends, status, done):
    outcome, trainer = train(monkeypatch, tmp_path, ends)
    assert (trainer.closed, outcome.done) == ([status], done)
    assert outcome.diverged is (ends if isinstance(ends, DivergedError) else None)
    assert outcome.recorded


def test_an_error_closes_the_run_and_is_told(monkeypatch, tmp_path, capsys):
    trainer = FakeTrainer(RuntimeError("odd"))
    monkeypatch.setattr(run, "_build", lambda *arguments: trainer)
    with pytest.raises(RuntimeError, match="odd"):
        run_training(OFFLINE, "r", tmp_path, resume=True)
    assert trainer.closed == ["FAILED"]


def ended_trainer(tmp_path, world_size=1, is_main=True):
    context = RunContext(tmp_path / "r", tmp_path, "trainer", "r")
    parallel = SimpleNamespace(world_size=world_size, is_main=is_main)
    return SimpleNamespace(
        context=context,
        step=4,
        total_steps=9,
        zero_variance_steps=0,
        config=SimpleNamespace(max_hours=None),
        parallel=parallel,
        stopped=True,
    )


@pytest.fixture
def outcome(tmp_path):
    (tmp_path / "r").mkdir()
    return RunOutcome(ended_trainer(tmp_path), done=True, recorded=True, diverged=None)


def test_a_run_that_is_done_names_its_model_and_metrics(outcome, tmp_path, capsys):
    assert report_outcome(outcome) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"model:    {tmp_path / 'r' / 'checkpoints' / 'step-4'}",
        f"metrics:  {tmp_path / 'r' / 'metrics.jsonl'}",
    ]


def test_a_stopped_run_ends_with_the_command_that_goes_on(outcome, tmp_path, capsys):
    stopped = replace(outcome, done=False, trainer=ended_trainer(tmp_path, world_size=2))
    assert report_outcome(stopped) == 130
    message, command = capsys.readouterr().out.splitlines()
    assert message.startswith("stopped at step 4 of 9; no checkpoint was saved")
    assert (
        command == "torchrun --nproc-per-node 2 --shutdown-timeout 900 -m trainer resume r "
        f"--runs-dir {tmp_path} --start-over"
    )
    (tmp_path / "r" / "checkpoints" / "step-2").mkdir(parents=True)
    report_outcome(stopped)
    assert capsys.readouterr().out.startswith(
        "stopped at step 4 of 9; saved at step 2; to resume:\n"
    )


def test_a_diverged_run_exits_1_and_says_what_to_change(outcome, tmp_path, capsys):
    assert report_outcome(replace(outcome, diverged=DivergedError(4, "loss", float("inf")))) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: diverged at step 4: loss is inf",
        f"where: {tmp_path / 'r'}",
        "next:  lower optim.lr, or raise algorithm.kl_coef",
    ]


def test_a_run_that_mlflow_has_not_whole_is_done_and_exits_4(outcome, tmp_path, capsys):
    with pytest.raises(StorageError) as failed:
        report_outcome(replace(outcome, recorded=False))
    assert failed.value.exit_code == 4 and failed.value.hint == f"trainer upload {tmp_path / 'r'}"
    assert capsys.readouterr().out.startswith("model:")


def test_the_first_rank_alone_reports(outcome, tmp_path, capsys):
    for done, diverged in ((True, None), (False, None), (False, DivergedError(1, "loss", 0.0))):
        report_outcome(RunOutcome(ended_trainer(tmp_path, is_main=False), done, True, diverged))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("schedule", "step", "now", "rates"),
    [
        ("constant", 4, 8, None),
        ("linear", 2, 4, None),
        ("linear", 4, 8, ("0.5", "0")),
        ("linear", 2, 8, ("0.75", "0.5")),
        ("cosine", 4, 8, ("0.5", "0")),
        ("linear", 2, 3, ("0.333", "0.5")),
    ],
)
def test_a_schedule_that_ends_at_another_step_than_before_is_reported(schedule, step, now, rates):
    optim = {"optim.lr": 1.0, "optim.lr_schedule": schedule, "optim.warmup_steps": 0}
    before, config = (apply_overrides(OFFLINE, {**optim, "max_steps": steps}) for steps in (4, now))
    trainer = SimpleNamespace(config=config, step=step, total_steps=now, problems=[])
    warning = schedule_warning(trainer, before)
    if rates is None:
        assert warning is None
    else:
        assert f"step {step + 1} is {rates[0]} instead of {rates[1]}\n" in warning
