import shutil

import pytest

from loptune.errors import INTERRUPTED
from tests.trainer.test_cli import TINY_RUN, run
from trainer.checkpoint.on_disk import intact_checkpoints, keep_weights
from trainer.commands.start import Start, start_run

START = "trainer run tiny_kk --offline --name r"


def files(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("model.name_or_path=./absent", 3, "no such model folder"),
        ("reward.functions={tests.rewards.own_rewards:nothing: 1}", 2, "has no nothing"),
        (
            "reward.functions={tests.trainer.failing_rewards:raising: 1}",
            2,
            "RuntimeError: no such luck",
        ),
        ("rollout.stop_token_ids=[1, 99999]", 2, "[stop-token-unknown]"),
        ("reward.workers=5000", 2, "[too-many-workers]"),
        ("rollout.engine=vllm", 2, "vLLM is not installed"),
    ],
)
def test_a_start_that_fails_leaves_no_folder(tmp_path, typed, tiny_policy, override, code, message):
    start = f"{START} model.name_or_path={tiny_policy}"
    assert message in typed(start, *TINY_RUN, override, code=code)
    assert files(tmp_path) == []


def test_a_failed_start_leaves_the_runs_and_files_of_others(tmp_path, typed):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "notes.txt").touch()
    for name in ("r", "other"):
        typed(f"trainer run tiny_kk --offline model.name_or_path=./absent --name {name}", code=3)
    assert "notes.txt" in files(tmp_path / "r")
    assert files(tmp_path) == ["r"]


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
        "trainer.loop.Trainer._sync_stop_request",
        lambda self: setattr(self, "stopped", True) or True,
    )
    words = ["--name", "r", f"model.name_or_path={tiny_policy}", "evaluation.at_start=false"]
    assert run(tmp_path, *words, *TINY_RUN) == INTERRUPTED
    message, command = capsys.readouterr().out.splitlines()[-2:]
    assert message.startswith("stopped at step 0 of 1; no checkpoint was saved")
    assert command == f"trainer resume r --runs-dir {tmp_path / 'runs'}"


def test_a_run_is_resumed_by_its_name(tmp_path, typed, tiny_policy):
    start = f"{START} model.name_or_path={tiny_policy}"
    assert "[no-such-run]" in typed("trainer resume r", code=3)
    typed(start, *TINY_RUN)
    assert "[run-exists]" in typed(start, *TINY_RUN, code=2)
    refused = typed("trainer resume r algorithm.ar_alpha=0.5", code=2)
    assert "[setting-changed]" in refused
    assert all(data in refused for data in ("algorithm.ar_alpha", "0.5", "0.0"))
    config = tmp_path / "r" / "config.yaml"
    text = config.read_text()
    for line in ("clip_ratio_high: 0.24", "lr: "):
        config.write_text(text.replace(line, line + "7"))
        assert config.read_text() != text
        assert "[setting-changed]" in typed("trainer resume r", code=2)
    config.write_text(text)
    assert "r has already finished its last step, 1" in typed("trainer resume r")
    out = typed("trainer resume r max_steps=2").splitlines()
    assert "resuming r at step 1 of 2" in out and any(line.startswith("step 2/2") for line in out)
    assert "[already-trained]" in typed("trainer resume r max_steps=1", code=2)


def test_every_rank_of_a_run_that_is_done_ends(tmp_path, capsys, monkeypatch, typed, tiny_policy):
    def joined(config):
        raise ConnectionError("this rank would wait for the first one")

    typed(f"{START} model.name_or_path={tiny_policy}", *TINY_RUN)
    monkeypatch.setattr("trainer.commands.run.make_parallel", joined)
    monkeypatch.setenv("WORLD_SIZE", "2")
    saved = str(tmp_path / "r" / "config.yaml")
    resume = "torchrun --nproc-per-node 2 --shutdown-timeout 900 -m trainer resume r"
    for rank, printed in ((0, resume), (1, "")):
        monkeypatch.setenv("RANK", str(rank))
        assert start_run(Start(spec=saved, overrides=[], runs_dir=tmp_path, resume=True)) == 0
        output = capsys.readouterr().out
        assert printed in output and bool(printed) == bool(output)
    with pytest.raises(ConnectionError):
        start_run(Start(spec=saved, overrides=["max_steps=2"], runs_dir=tmp_path, resume=True))


def test_a_run_whose_weights_alone_were_kept_is_not_resumed(tmp_path, typed, tiny_policy):
    start = f"{START} model.name_or_path={tiny_policy}"
    typed(start, *TINY_RUN)
    folder = tmp_path / "r"
    keep_weights(folder / "checkpoints", set())
    (newest,) = intact_checkpoints(folder / "checkpoints")
    what, where, hint = typed("trainer resume r", code=2).splitlines()
    assert "[weights-only]" in what
    assert where == f"where: {newest}"
    assert "weights" in hint
    metrics = (folder / "metrics.jsonl").read_bytes()
    typed("trainer evaluate", folder)
    assert (folder / "metrics.jsonl").read_bytes() == metrics
    typed("trainer resume r --start-over")  # what there was lies in earlier-1
    assert next(intact_checkpoints(folder / "checkpoints")).name == newest.name


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("checkpoints", "[checkpoint-lost]"),
        ("checkpoints/step-2/model.safetensors", "[all-checkpoints-damaged]"),
        ("metrics.jsonl", "[record-lost]"),
    ],
)
def test_a_run_that_lost_a_part_is_begun_again_only_when_told(
    tmp_path, typed, tiny_policy, lost, message
):
    start = f"{START} model.name_or_path={tiny_policy}"
    typed(start, *TINY_RUN, "max_steps=2", "checkpoint.every_steps=2")
    folder = tmp_path / "r"
    (folder / lost).unlink() if (folder / lost).is_file() else shutil.rmtree(folder / lost)
    record = {path: path.read_bytes() for path in folder.glob("metrics.jsonl")}
    for _ in range(2):  # the second time a damaged checkpoint has been set aside already
        errors = typed("trainer resume r max_steps=3", code=4)
        assert message in errors and "--start-over" in errors
    assert record == {path: path.read_bytes() for path in folder.glob("metrics.jsonl")}
    typed("trainer resume r max_steps=3 --start-over")
    assert [path.read_bytes() for path in (folder / "earlier-1").glob("metrics.jsonl")] == list(
        record.values()
    )
    assert (folder / "checkpoints" / "step-3" / "manifest.json").is_file()


def test_a_run_does_not_start_in_a_sweep(tmp_path, typed):
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "space.lock.yaml").touch()
    assert "[is-a-sweep]\n" in typed(START, code=2)


def test_an_empty_value_is_no_default(typed):
    assert "[no-value]\n" in typed(f"{START} max_steps=", code=2)
    assert "invalid name: ''" in typed("trainer run tiny_kk --name", "", code=2)


def test_a_run_that_learns_nothing_says_so_at_its_end(tmp_path, capsys, monkeypatch, tiny_policy):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge.py").write_text("def exact(text, answer): return 1.0\n")
    words = ["--name", "r", f"model.name_or_path={tiny_policy}"]
    assert run(tmp_path, *words, *TINY_RUN, "reward.functions={judge:exact: 1.0}") == 0
    assert (
        "in the only step, all completions of every prompt had the same reward"
        in capsys.readouterr().err
    )
    metrics = (tmp_path / "runs" / "r" / "metrics.jsonl").read_text()
    assert '"final/zero_variance_steps": 1.0' in metrics
