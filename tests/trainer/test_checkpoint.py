import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
import torch

from trainer import checkpoint
from trainer.checkpoint import (
    damaged_files,
    intact_checkpoints,
    newest_checkpoint,
    prune_checkpoints,
    start_over,
    steps_on_disk,
    write_checkpoint,
)
from trainer.errors import StorageError
from trainer.parallel.ranks import Parallel


def write_text(text):
    return lambda folder: (folder / "state.txt").write_text(text)


def test_newest_intact_checkpoint_comes_first(tmp_path):
    for step in (2, 10, 9):
        write_checkpoint(tmp_path, step, write_text(f"state {step}"))
    assert steps_on_disk(tmp_path) == [10, 9, 2]
    assert [path.name for path in intact_checkpoints(tmp_path)] == ["step-10", "step-9", "step-2"]


def test_a_flipped_byte_is_found_and_passed_over(tmp_path, caplog):
    for step in (1, 2):
        write_checkpoint(tmp_path, step, write_text(f"state {step}"))
    file = tmp_path / "step-2" / "state.txt"
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)
    assert damaged_files(tmp_path / "step-2") == ["state.txt"]
    assert [path.name for path in intact_checkpoints(tmp_path)] == ["step-1"]
    assert "state.txt" in caplog.text


def test_a_missing_file_and_a_broken_manifest_are_damage(tmp_path):
    folder = write_checkpoint(tmp_path, 1, write_text("x"))
    (folder / "state.txt").unlink()
    assert damaged_files(folder) == ["state.txt"]
    (folder / "manifest.json").write_text("{")
    assert damaged_files(folder) == ["manifest.json"]


def test_an_error_while_writing_leaves_the_older_checkpoint_and_nothing_else(tmp_path):
    write_checkpoint(tmp_path, 1, write_text("good"))

    def fail(folder):
        (folder / "state.txt").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match="No space left") as caught:
        write_checkpoint(tmp_path, 2, fail)
    assert "MiB free" in caught.value.where
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-1"]


def test_killed_while_writing_is_never_loaded(tmp_path):
    write_checkpoint(tmp_path, 1, write_text("good"))
    script = textwrap.dedent(f"""
        import os, pathlib, signal
        from trainer.checkpoint import write_checkpoint
        def die(folder):
            (folder / "state.txt").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
        write_checkpoint(pathlib.Path({str(tmp_path)!r}), 2, die)
    """)
    result = subprocess.run([sys.executable, "-c", script], env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.returncode == -signal.SIGKILL
    assert [path.name for path in intact_checkpoints(tmp_path)] == ["step-1"]
    write_checkpoint(tmp_path, 2, write_text("again"))
    assert (tmp_path / "step-2" / "state.txt").read_text() == "again"


def test_pruning_keeps_the_newest_and_the_best(tmp_path):
    for step in (1, 2, 3, 4, 5):
        write_checkpoint(tmp_path, step, write_text(str(step)))
    prune_checkpoints(tmp_path, keep_last=2, keep_steps={1})
    assert steps_on_disk(tmp_path) == [5, 4, 1]


def damage(folder):
    (folder / "state.txt").write_text("damaged")


def test_damaged_checkpoints_do_not_push_out_good_ones(tmp_path):
    for step in (2, 4, 8, 10):
        write_checkpoint(tmp_path, step, write_text(f"state {step}"))
    for step in (8, 10):
        damage(tmp_path / f"step-{step}")
    assert newest_checkpoint(tmp_path) == tmp_path / "step-4"
    assert sorted(path.name for path in tmp_path.glob("damaged-*")) == ["damaged-step-10", "damaged-step-8"]
    write_checkpoint(tmp_path, 6, write_text("state 6"))
    prune_checkpoints(tmp_path, keep_last=2, keep_steps=set(), written=6)
    assert steps_on_disk(tmp_path) == [6, 4]
    write_checkpoint(tmp_path, 8, write_text("state 8"))
    prune_checkpoints(tmp_path, keep_last=2, keep_steps=set(), written=8)
    assert steps_on_disk(tmp_path) == [8, 6]
    assert [path.name for path in tmp_path.glob("damaged-*")] == ["damaged-step-10"]  # not yet come past it


def test_pruning_counts_intact_checkpoints_only(tmp_path):
    for step in (1, 2, 3, 4):
        write_checkpoint(tmp_path, step, write_text(f"state {step}"))
    damage(tmp_path / "step-3")
    prune_checkpoints(tmp_path, keep_last=2, keep_steps=set(), written=4)
    assert steps_on_disk(tmp_path) == [4, 2]


def test_with_damaged_checkpoints_alone_nothing_begins_again_by_itself(tmp_path):
    assert newest_checkpoint(tmp_path) is None
    write_checkpoint(tmp_path, 2, write_text("state"))
    (tmp_path / "step-2" / "manifest.json").unlink()
    for _ in range(2):  # the second time it has been set aside already
        with pytest.raises(StorageError, match="those of step 2 are damaged") as caught:
            newest_checkpoint(tmp_path)
        assert "--start-over" in caught.value.hint


def test_starting_over_keeps_the_old_record(tmp_path):
    assert start_over(tmp_path) is None
    for attempt in (1, 2):
        write_checkpoint(tmp_path / "checkpoints", attempt, write_text("state"))
        (tmp_path / "metrics.jsonl").write_text(f"attempt {attempt}\n")
        assert start_over(tmp_path) == tmp_path / f"earlier-{attempt}"
    assert newest_checkpoint(tmp_path / "checkpoints") is None
    assert (tmp_path / "earlier-1" / "metrics.jsonl").read_text() == "attempt 1\n"
    assert (tmp_path / "earlier-2" / "checkpoints" / "step-2" / "manifest.json").is_file()


def test_a_checkpoint_that_may_not_be_read_is_not_damaged(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, 2, write_text("state"))

    def refused(paths):
        raise PermissionError(errno.EACCES, "Permission denied", str(paths[0]))

    monkeypatch.setattr("trainer.checkpoint._sha256", refused)  # root, as in a container, may read everything
    with pytest.raises(StorageError, match="may not read the checkpoint"):
        newest_checkpoint(tmp_path)
    assert steps_on_disk(tmp_path) == [2]


class Rank(Parallel):
    """One of two threads that write a checkpoint together."""

    world_size, shards_optimizer = 2, True

    def __init__(self, rank: int, meeting: threading.Barrier, items: dict[int, list]) -> None:
        super().__init__(torch.device("cpu"))
        self.rank, self.meeting, self.items = rank, meeting, items

    def gather(self, items: list, after_files: bool = False) -> list:
        assert after_files, "the others would be given up while a rank is at files"
        self.items[self.rank] = items
        self.meeting.wait(20)
        gathered = [item for rank in sorted(self.items) for item in self.items[rank]]
        self.meeting.wait(20)
        return gathered


def test_every_rank_hashes_what_it_wrote(tmp_path, monkeypatch):
    hashed: dict[str, set[str]] = {"rank-0": set(), "rank-1": set()}
    real = checkpoint._sha256

    def recording(paths):
        hashed[threading.current_thread().name] |= {path.name for path in paths}
        return real(paths)

    monkeypatch.setattr(checkpoint, "_sha256", recording)
    meeting, items = threading.Barrier(2), {}

    def write(rank: int) -> None:
        def files(folder):
            (folder / f"training_state-{rank}-of-2.safetensors").write_text(f"of rank {rank}")
            if rank == 0:
                (folder / "model.safetensors").write_text("weights")

        write_checkpoint(tmp_path, 3, files, Rank(rank, meeting, items))

    threads = [threading.Thread(target=write, args=(rank,), name=f"rank-{rank}") for rank in range(2)]
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
