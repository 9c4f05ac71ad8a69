import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

from tests.conftest import random_model
from trainer.checkpoint import (
    damaged_files,
    intact_checkpoints,
    load_optimizer_tensors,
    load_weights,
    optimizer_tensors,
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


@pytest.mark.parametrize("tied", [True, False])
def test_weights_round_trip_and_foreign_weights_are_refused(tmp_path, tied):
    saved, fresh = random_model(tied=tied, seed=1), random_model(tied=tied, seed=2)
    saved.save_pretrained(tmp_path)
    load_weights(tmp_path, fresh)
    for a, b in zip(saved.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(StorageError, match="does not fit"):
        load_weights(
            tmp_path, random_model(family="llama", tied=False) if tied else random_model("qwen2", True, 61).model
        )


def test_optimizer_state_round_trips_by_parameter_name():
    def trained():
        model = random_model(seed=3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        for _ in range(2):
            model(torch.tensor([[3, 4, 5]])).logits.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    model, optimizer = trained()
    fresh = random_model(seed=3)
    restored = torch.optim.AdamW(fresh.parameters(), lr=1e-2, fused=True)
    load_optimizer_tensors(fresh, restored, json_free_copy(optimizer_tensors(model, optimizer)))
    fresh.load_state_dict(model.state_dict())
    for m, o in ((model, optimizer), (fresh, restored)):
        m(torch.tensor([[3, 4, 5]])).logits.square().mean().backward()
        o.step()
    for a, b in zip(model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b)


def json_free_copy(tensors):
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
    json.dumps(list(tensors))
    return {name: tensor.clone() for name, tensor in tensors.items()}
