import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch

from loptune.errors import ConfigError, StorageError
from tests.conftest import random_model
from tests.invariants.update_job import NoTokenizer
from tests.refusals import refused
from trainer.attempt import Attempt
from trainer.checkpoint import on_disk as checkpoint
from trainer.checkpoint.on_disk import (
    damaged_files,
    intact_checkpoints,
    is_weights_only,
    keep_weights,
    newest_checkpoint,
    prune_checkpoints,
    raise_if_weights_only,
    start_over,
    steps_on_disk,
)
from trainer.checkpoint.run_state import RunState
from trainer.checkpoint.state import load_training_state, stage_training_state
from trainer.parallel.ranks import Parallel


def write_checkpoint(root, step, write, parallel=None):
    return checkpoint.write_checkpoint(
        root, step, write, parallel or Parallel(), Attempt(root.parent)
    )


RECORD = ("metrics.jsonl", "completions.jsonl", "correctness.jsonl")


def write_text(text):
    return lambda folder: (folder / "state.txt").write_text(text)


def test_what_is_written_is_on_the_disk_before_the_folder_has_its_name(tmp_path, monkeypatch):
    done = []
    flush = checkpoint.flush_to_disk
    rename = Path.rename
    monkeypatch.setattr(
        checkpoint, "flush_to_disk", lambda path: done.append(f"flush {path.name}") or flush(path)
    )
    monkeypatch.setattr(
        Path, "rename", lambda path, to: done.append(f"rename to {to.name}") or rename(path, to)
    )

    def write(folder):
        (folder / "weights").write_text("x")
        (folder / ".tmp1LBV0j").write_text("what safetensors is writing for another rank")
        (folder / "adapter").mkdir()
        (folder / "adapter" / "config").write_text("y")

    folder = write_checkpoint(tmp_path, 3, write)
    assert done == [
        *(
            "flush config",
            "flush weights",
            "flush manifest.json",
            "flush .step-3.0.partial",
            "rename to step-3",
        ),
        f"flush {tmp_path.name}",
    ]
    (folder / "adapter" / "config").unlink()
    assert damaged_files(folder) == ["adapter/config"]


def test_a_step_that_is_written_again_replaces_the_one_before(tmp_path):
    for text in ("first", "second"):
        folder = write_checkpoint(tmp_path, 3, write_text(text))
    assert ((folder / "state.txt").read_text(), damaged_files(folder)) == ("second", [])


def test_the_folder_of_a_run_that_has_vanished_is_not_made_anew(tmp_path):
    with pytest.raises(StorageError):
        write_checkpoint(tmp_path / "moved" / "checkpoints", 3, write_text("state"))
    assert not (tmp_path / "moved").exists()


def test_a_missing_file_and_a_broken_manifest_are_damage(tmp_path):
    folder = write_checkpoint(tmp_path, 1, write_text("x"))
    (folder / "state.txt").unlink()
    assert damaged_files(folder) == ["state.txt"]
    (folder / "manifest.json").write_text("{")
    assert damaged_files(folder) == ["manifest.json"]
    assert not is_weights_only(folder)  # of which nothing is known


# safetensors has an error of its own for a full disk.
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("No space left on device")]
)
def test_a_write_error_leaves_only_the_older_checkpoint(tmp_path, error, monkeypatch):
    write_checkpoint(tmp_path, 1, write_text("good"))
    # inodes are there again once the partial one is gone
    monkeypatch.setattr(
        "loptune.files._has_inodes", lambda path: not list(path.glob(".step-2.*.partial"))
    )

    def fail(folder):
        (folder / "state.txt").write_text("half")
        raise error

    with refused("not-written", StorageError, names=("No space left",)) as caught:
        write_checkpoint(tmp_path, 2, fail)
    assert "MiB free" in caught.value.where and "inodes" in caught.value.hint
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-1"]


def test_killed_while_writing_is_never_loaded(tmp_path):
    write_checkpoint(tmp_path, 1, write_text("good"))
    script = textwrap.dedent(f"""
        import os, pathlib, signal
        from tests.trainer.checkpoint.test_on_disk import write_checkpoint
        def die(folder):
            (folder / "state.txt").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
        write_checkpoint(pathlib.Path({str(tmp_path)!r}), 2, die)
    """)
    result = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert result.returncode == -signal.SIGKILL
    assert [path.name for path in intact_checkpoints(tmp_path)] == ["step-1"]
    write_checkpoint(tmp_path, 2, write_text("again"))
    assert (tmp_path / "step-2" / "state.txt").read_text() == "again"


def damage(folder):
    (folder / "state.txt").write_text("damaged")


def test_damaged_checkpoints_do_not_push_out_good_ones(tmp_path):
    for step in (2, 4, 8, 10):
        write_checkpoint(tmp_path, step, write_text(f"state {step}"))
    for step in (8, 10):
        damage(tmp_path / f"step-{step}")
    assert newest_checkpoint(tmp_path) == tmp_path / "step-4"
    assert sorted(path.name for path in tmp_path.glob("damaged-*")) == [
        "damaged-step-10",
        "damaged-step-8",
    ]
    write_checkpoint(tmp_path, 6, write_text("state 6"))
    prune_checkpoints(tmp_path, keep_last=2, keep_steps=set())
    assert steps_on_disk(tmp_path) == [6, 4]
    write_checkpoint(tmp_path, 8, write_text("state 8"))
    prune_checkpoints(tmp_path, keep_last=2, keep_steps=set())
    assert steps_on_disk(tmp_path) == [8, 6]
    # not yet come past it
    assert [path.name for path in tmp_path.glob("damaged-*")] == ["damaged-step-10"]


def test_pruning_keeps_newest_and_best_and_skips_incomplete_ones(tmp_path, monkeypatch):
    for step in (1, 2, 3, 4, 5):
        write_checkpoint(tmp_path, step, write_text(f"state {step}"))
    (tmp_path / "step-4" / "state.txt").unlink()
    monkeypatch.setattr(checkpoint, "_sha256", None)  # no gigabytes are read again
    prune_checkpoints(tmp_path, keep_last=2, keep_steps={1})
    assert steps_on_disk(tmp_path) == [5, 3, 1]


def test_what_killed_processes_left_goes_with_the_next_checkpoint(tmp_path):
    for name in (".step-3.1.partial", ".step-2.partial"):
        (tmp_path / name).mkdir()
    write_checkpoint(tmp_path, 4, write_text("state"))
    assert [path.name for path in tmp_path.iterdir()] == ["step-4"]


def test_starting_over_keeps_the_old_record(tmp_path):
    assert start_over(tmp_path) is None
    for attempt in (1, 2):
        write_checkpoint(tmp_path / "checkpoints", attempt, write_text("state"))
        for name in RECORD:
            (tmp_path / name).write_text(f"attempt {attempt}\n")
        assert start_over(tmp_path) == tmp_path / f"earlier-{attempt}"
    assert newest_checkpoint(tmp_path / "checkpoints") is None
    for name in RECORD:
        assert (tmp_path / "earlier-1" / name).read_text() == "attempt 1\n"
        # from which the tracker learns what it has shipped
        assert (tmp_path / name).read_text() == "attempt 2\n"
    assert (tmp_path / "earlier-2" / "checkpoints" / "step-2" / "manifest.json").is_file()


def test_a_checkpoint_that_may_not_be_read_is_not_damaged(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, 2, write_text("state"))

    def no_permission(paths):
        raise PermissionError(errno.EACCES, "Permission denied", str(paths[0]))

    # root, as in a container, may read everything
    monkeypatch.setattr("trainer.checkpoint.on_disk._sha256", no_permission)
    with refused("checkpoint-unreadable", StorageError):
        newest_checkpoint(tmp_path)
    assert steps_on_disk(tmp_path) == [2]


class Rank(Parallel):
    """One of two threads that write a checkpoint together."""

    world_size = 2
    shards_optimizer = True

    def __init__(self, rank, meeting, items):
        super().__init__(torch.device("cpu"))
        self.rank = rank
        self.meeting = meeting
        self.items = items

    def gather(self, items, after_files=False):
        assert after_files, "the others would be given up while a rank is at files"
        self.items[self.rank] = items
        self.meeting.wait(20)
        collect_comparisons = [item for rank in sorted(self.items) for item in self.items[rank]]
        self.meeting.wait(20)
        return collect_comparisons


def test_every_rank_hashes_what_it_wrote(tmp_path, monkeypatch):
    hashed = {"rank-0": set(), "rank-1": set()}
    real = checkpoint._sha256

    def recording(paths):
        hashed[threading.current_thread().name] |= {path.name for path in paths}
        return real(paths)

    monkeypatch.setattr(checkpoint, "_sha256", recording)
    meeting = threading.Barrier(2)
    items = {}

    def write(rank):
        def files(folder):
            (folder / f"training_state-{rank}-of-2.safetensors").write_text(f"of rank {rank}")
            if rank == 0:
                (folder / "model.safetensors").write_text("weights")

        write_checkpoint(tmp_path, 3, files, Rank(rank, meeting, items))

    threads = [
        threading.Thread(target=write, args=(rank,), name=f"rank-{rank}") for rank in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    monkeypatch.undo()
    assert hashed["rank-0"] == {"model.safetensors", "training_state-0-of-2.safetensors"}
    assert hashed["rank-1"] == {"training_state-1-of-2.safetensors"}
    assert damaged_files(tmp_path / "step-3") == []
    (tmp_path / "step-3" / "training_state-1-of-2.safetensors").write_text("of rank 9")
    assert damaged_files(tmp_path / "step-3") == ["training_state-1-of-2.safetensors"]


KEPT = ["manifest.json", "model.safetensors", "training_state.json"]


def write_whole(folder):
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "training_state.json").write_text(
        json.dumps({"step": int(folder.name.split("-")[1].split(".")[0])})
    )
    for rank in range(2):
        (folder / f"training_state-{rank}-of-2.safetensors").write_bytes(b"moments")


def ended_run(root):
    for step in (2, 4, 6, 8):
        write_checkpoint(root, step, write_whole)
    shutil.copytree(root / "step-2", root / "damaged-step-3")
    (root / ".step-9.partial").mkdir()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_of_an_ended_run_the_weights_of_the_last_and_the_best_are_kept(tmp_path):
    ended_run(tmp_path)
    assert not is_weights_only(tmp_path / "step-8")
    raise_if_weights_only(tmp_path / "step-8")
    keep_weights(tmp_path, {4})
    assert names(tmp_path) == ["step-4", "step-8"]
    for folder in intact_checkpoints(tmp_path):
        assert names(folder) == KEPT
        assert is_weights_only(folder)
    with refused("weights-only", ConfigError) as caught:
        raise_if_weights_only(tmp_path / "step-8")
    assert tmp_path.parent.name in caught.value.what and "step 8" in caught.value.what
    with refused("weights-only", ConfigError):
        load_training_state(tmp_path / "step-8", None, None, Parallel(torch.device("cpu")))
    (tmp_path / "step-8" / "model.safetensors").write_bytes(b"damaged")
    assert damaged_files(tmp_path / "step-8") == ["model.safetensors"]


def test_a_run_on_the_cpu_leaves_a_gpu_alone(tmp_path, monkeypatch):
    """The state of its generator is not asked for, which would take memory there."""
    model = random_model()
    optimizer = torch.optim.AdamW(model.parameters())
    state = RunState(1, [], 0, {})
    on_cpu = Parallel()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    stage_training_state(model, NoTokenizer(), optimizer, state, on_cpu)(tmp_path)
    assert load_training_state(tmp_path, model, optimizer, on_cpu) == state


class Killed(BaseException):
    """Not an error that code may handle: what follows it is not done."""


def kill_at(moment, monkeypatch):
    """Die before the change of the disk with this number; half-way through where it removes a
    folder.
    """
    changes = iter(range(10**6))

    def before(change, half=lambda *arguments: None):
        def guarded(*arguments, **options):
            if next(changes) == moment:
                half(*arguments)
                raise Killed
            return change(*arguments, **options)

        return guarded

    def half_removed(folder):
        for path in sorted(folder.iterdir())[:1]:
            os.unlink(path)

    monkeypatch.setattr(shutil, "rmtree", before(shutil.rmtree, half_removed))
    monkeypatch.setattr(Path, "rename", before(Path.rename))
    monkeypatch.setattr(Path, "unlink", before(Path.unlink))
    monkeypatch.setattr(os, "replace", before(os.replace))


def test_killed_at_any_moment_checkpoints_are_intact_or_shrunk(tmp_path):
    moments = 0
    for moment in range(100):
        root = tmp_path / str(moment)
        root.mkdir()
        ended_run(root)
        with pytest.MonkeyPatch.context() as monkeypatch:
            kill_at(moment, monkeypatch)
            try:
                keep_weights(root, {4})
                break
            except Killed:
                moments += 1
        assert {8, 4} <= set(steps_on_disk(root))
        for step in steps_on_disk(root):
            folder = root / f"step-{step}"
            assert damaged_files(folder) == []
            hashes = json.loads((folder / "manifest.json").read_text())
            # What the manifest does not name is not read, and what it names is there.
            assert is_weights_only(folder) == (set(hashes) == set(KEPT) - {"manifest.json"})
        keep_weights(root, {4})
        assert names(root) == ["step-4", "step-8"]
        assert names(root / "step-8") == names(root / "step-4") == KEPT
    # Two folders of no use, two checkpoints to rename and remove, two manifests and what lies in
    # the place of their drafts, four parts of a state.
    assert moments == 2 + 2 * 2 + 2 * 2 + 4


def test_nothing_is_removed_where_the_newest_checkpoint_is_not_all_there(tmp_path):
    ended_run(tmp_path)
    (tmp_path / "step-8" / "model.safetensors").unlink()
    before = sorted(tmp_path.rglob("*"))
    keep_weights(tmp_path, set())
    (tmp_path / "step-8" / "manifest.json").write_text("{")
    keep_weights(tmp_path, set())
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_on_record_whose_checkpoints_are_gone_does_not_begin_again(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1}\n{"step": 2}\n')
    checkpoint.check_complete(tmp_path, 3, "again")  # none was due
    with refused("checkpoint-lost", StorageError):
        checkpoint.check_complete(tmp_path, 2, "again")
    (tmp_path / "checkpoints" / "step-2").mkdir(parents=True)
    checkpoint.check_complete(tmp_path, 2, "again")
    (tmp_path / "metrics.jsonl").unlink()
    with refused("record-lost", StorageError):
        checkpoint.check_complete(tmp_path, 2, "again")
