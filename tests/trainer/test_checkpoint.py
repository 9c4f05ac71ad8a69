import os
import signal
import subprocess
import sys
import textwrap

import pytest

from trainer.checkpoint import (
    damaged_files,
    intact_checkpoints,
    prune_checkpoints,
    steps_on_disk,
    write_checkpoint,
)
from trainer.errors import StorageError


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
