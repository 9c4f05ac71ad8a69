import shutil

import pytest

from tests.trainer.test_cli import TINY_RUN, error_lines, run
from trainer.checkpoint.files import intact_checkpoints, keep_weights
from trainer.cli import main
from trainer.errors import INTERRUPTED


def files(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("model.name_or_path=./absent", 3, "no such model folder"),
        ("reward.functions={tests.rewards.own_rewards:nothing: 1}", 2, "has no function nothing"),
        (
            "reward.functions={tests.trainer.failing_rewards:raising: 1}",
            2,
            "first problem: RuntimeError: no such luck",
        ),
        ("rollout.stop_token_ids=[1, 99999]", 2, "stop token 99999 is outside the vocabulary"),
        ("reward.workers=5000", 2, "5000 scoring processes on"),
        ("rollout.engine=vllm", 2, "vLLM is not installed"),
    ],
)
def test_a_start_that_fails_leaves_no_folder(
    tmp_path, capsys, tiny_policy, override, code, message
):
    words = ["--name", "r", f"model.name_or_path={tiny_policy}", *TINY_RUN, override]
    assert run(tmp_path, *words) == code
    assert message in capsys.readouterr().err
    assert files(tmp_path / "runs") == []


def test_a_failed_start_leaves_the_runs_and_files_of_others(tmp_path, capsys, tiny_policy):
    (tmp_path / "runs" / "r").mkdir(parents=True)
    (tmp_path / "runs" / "r" / "notes.txt").touch()
    assert run(tmp_path, "--name", "r", "model.name_or_path=./absent") == 3
    assert "notes.txt" in files(tmp_path / "runs" / "r")
    assert run(tmp_path, "--name", "other", "model.name_or_path=./absent") == 3
    assert files(tmp_path / "runs") == ["r"]


def test_an_interrupt_before_the_first_record_says_that_nothing_was_saved(
    tmp_path, capsys, monkeypatch, tiny_policy
):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("trainer.loop.load_models", interrupted)
    assert (
        run(tmp_path, "--name", "r", f"model.name_or_path={tiny_policy}", *TINY_RUN) == INTERRUPTED
    )
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "stopped before the first record: nothing was saved"
    )
    assert files(tmp_path / "runs") == []


def test_an_interrupt_before_the_first_checkpoint_says_so(
    tmp_path, capsys, monkeypatch, tiny_policy
):
    monkeypatch.setattr(
        "trainer.loop.Trainer._agree_to_stop", lambda self: setattr(self, "stopping", True) or True
    )
    words = [
        "--name",
        "r",
        f"model.name_or_path={tiny_policy}",
        *TINY_RUN,
        "evaluation.at_start=false",
    ]
    assert run(tmp_path, *words) == INTERRUPTED
    message, command = capsys.readouterr().out.splitlines()[-2:]
    assert message == "stopped at step 0 of 1; nothing was saved; to start again:"
    assert command == f"trainer resume r --runs-dir {tmp_path / 'runs'}"


def test_a_run_is_resumed_by_its_name(tmp_path, capsys, tiny_policy):
    here = ["--runs-dir", str(tmp_path / "runs")]
    assert main(["resume", "r", *here]) == 3
    assert "no run r" in error_lines(capsys)[0]
    assert run(tmp_path, "--name", "r", f"model.name_or_path={tiny_policy}", *TINY_RUN) == 0
    assert run(tmp_path, "--name", "r", f"model.name_or_path={tiny_policy}", *TINY_RUN) == 2
    assert "run r exists" in capsys.readouterr().err
    assert main(["resume", "r", *here, "algorithm.ar_alpha=0.5"]) == 2
    assert "algorithm.ar_alpha is 0.5, but the run was started with 0.0" in capsys.readouterr().err
    config = tmp_path / "runs" / "r" / "config.yaml"
    text = config.read_text()
    for line in ("clip_ratio_high: 0.24", "lr: "):
        config.write_text(text.replace(line, line + "7"))
        assert config.read_text() != text
        assert main(["resume", "r", *here]) == 2
        assert "but the run was started with" in capsys.readouterr().err
    config.write_text(text)
    assert main(["resume", "r", *here]) == 0
    assert "r already has step 1, its last; nothing to do" in capsys.readouterr().out
    assert main(["resume", "r", *here, "max_steps=2"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "resuming r at step 1 of 2" in out and any(line.startswith("step 2/2") for line in out)


def test_a_run_whose_weights_alone_were_kept_is_not_resumed(tmp_path, capsys, tiny_policy):
    words = ["--name", "r", f"model.name_or_path={tiny_policy}", *TINY_RUN, "tracking.offline=true"]
    assert run(tmp_path, *words) == 0
    checkpoints = tmp_path / "runs" / "r" / "checkpoints"
    keep_weights(checkpoints, set())
    (newest,) = intact_checkpoints(checkpoints)
    resume = ["resume", "r", "--runs-dir", str(tmp_path / "runs")]
    capsys.readouterr()
    assert main(resume) == 2
    what, where, hint = error_lines(capsys)
    step = newest.name.replace("-", " ")
    assert (
        what == f"error: r has ended, at {step}: its weights were kept, its optimizer state was not"
    )
    assert where == f"where: {newest}"
    assert "weights" in hint
    metrics = (tmp_path / "runs" / "r" / "metrics.jsonl").read_bytes()
    assert main(["evaluate", str(tmp_path / "runs" / "r")]) == 0
    assert (tmp_path / "runs" / "r" / "metrics.jsonl").read_bytes() == metrics
    assert main([*resume, "--start-over"]) == 0  # what there was lies in earlier-1
    assert next(intact_checkpoints(checkpoints)).name == newest.name


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("checkpoints", "r was at step 2, and it has no checkpoint"),
        (
            "checkpoints/step-2/model.safetensors",
            "no intact checkpoint: those of step 2 are damaged",
        ),
        ("metrics.jsonl", "the record of r is gone"),
    ],
)
def test_a_run_that_lost_a_part_is_begun_again_only_when_told(
    tmp_path, capsys, tiny_policy, lost, message
):
    words = [
        "--name",
        "r",
        f"model.name_or_path={tiny_policy}",
        *TINY_RUN,
        "tracking.offline=true",
        "max_steps=2",
    ]
    assert run(tmp_path, *words, "checkpoint.every_steps=2") == 0
    folder = tmp_path / "runs" / "r"
    resume = ["resume", "r", "--runs-dir", str(tmp_path / "runs"), "max_steps=3"]
    (folder / lost).unlink() if (folder / lost).is_file() else shutil.rmtree(folder / lost)
    record = {path: path.read_bytes() for path in folder.glob("metrics.jsonl")}
    for _ in range(2):  # the second time a damaged checkpoint has been set aside already
        assert main(resume) == 4
        errors = capsys.readouterr().err
        assert message in errors and "--start-over" in errors
    assert record == {path: path.read_bytes() for path in folder.glob("metrics.jsonl")}
    assert main([*resume, "--start-over"]) == 0
    assert [path.read_bytes() for path in (folder / "earlier-1").glob("metrics.jsonl")] == list(
        record.values()
    )
    assert (folder / "checkpoints" / "step-3" / "manifest.json").is_file()


def test_a_run_does_not_start_in_a_sweep(tmp_path, capsys):
    (tmp_path / "runs" / "s").mkdir(parents=True)
    (tmp_path / "runs" / "s" / "space.lock.yaml").touch()
    assert run(tmp_path, "--name", "s") == 2
    assert error_lines(capsys)[0] == "error: s is a sweep"


def test_an_empty_value_is_no_default(tmp_path, capsys):
    assert run(tmp_path, "--name", "r", "max_steps=") == 2
    assert error_lines(capsys)[0] == "error: max_steps= has no value"
    assert run(tmp_path, "--name", "") == 2
    assert "not a usable name: ''" in error_lines(capsys)[0]


def test_a_run_that_learns_nothing_says_so_at_its_end(tmp_path, capsys, monkeypatch, tiny_policy):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge.py").write_text("def exact(text, answer): return 1.0\n")
    words = [
        "--name",
        "r",
        f"model.name_or_path={tiny_policy}",
        *TINY_RUN,
        "reward.functions={judge:exact: 1.0}",
    ]
    assert run(tmp_path, *words) == 0
    assert (
        "in its only step all completions of every prompt had the same reward"
        in capsys.readouterr().err
    )
    metrics = (tmp_path / "runs" / "r" / "metrics.jsonl").read_text()
    assert '"final/silent_steps": 1.0' in metrics
