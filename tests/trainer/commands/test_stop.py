"""`trainer stop`: the request that a running run finds, and the states in which it is refused."""

from loptune.run_names import lock_folder
from tests.trainer.commands.test_runs import write_run
from tests.trainer.test_cli import TINY_RUN
from trainer.cli import main
from trainer.run_folder import RunFolder


def test_a_run_that_is_running_is_asked_to_stop(tmp_path, typed):
    folder = write_run(tmp_path, "r")
    with lock_folder(folder):
        printed = typed("trainer stop r")
    assert RunFolder(folder).stop.is_file()
    assert f"trainer resume r --runs-dir {tmp_path}" in printed


def test_what_does_not_run_is_not_stopped(tmp_path, typed):
    folder = write_run(tmp_path, "r")
    assert "[not-running]" in typed("trainer stop r", code=3)
    assert not RunFolder(folder).stop.exists()
    typed("trainer stop nothing", code=3)


def test_a_trial_names_the_sweep_to_stop(tmp_path, capsys):
    trial = write_run(tmp_path / "s" / "trials", "c000-s0")
    (tmp_path / "s" / "space.lock.yaml").touch()
    with lock_folder(trial):
        assert main(["stop", str(trial)]) == 2
    printed = capsys.readouterr().err
    assert "[trial-of-a-sweep]" in printed and f"sweep stop s --runs-dir {tmp_path}" in printed


def test_a_run_stops_once_and_its_resumption_forgets_the_request(tmp_path, typed, monkeypatch):
    from trainer.loop import Trainer

    step = Trainer.training_step

    def stopped_step(trainer):
        metrics = step(trainer)
        if trainer.step == 1:
            typed("trainer stop r")
        return metrics

    monkeypatch.setattr(Trainer, "training_step", stopped_step)
    typed("trainer run tiny_kk --offline --name r", *TINY_RUN, "max_steps=3", code=130)
    checkpoints = tmp_path / "r" / "checkpoints"
    assert [path.name for path in checkpoints.iterdir()] == ["step-1"]
    typed("trainer resume r")
    assert (checkpoints / "step-3").is_dir()
