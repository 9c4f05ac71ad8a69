"""Checkpoints on disk: written whole or not at all, verified before they are read."""

import errno
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from trainer.errors import StorageError
from trainer.parallel.ranks import Parallel
from trainer.policy.state import random_states, restore_random_states

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d+)")


def write_checkpoint(
    root: Path, step: int, write_files: Callable[[Path], None], parallel: Parallel | None = None
) -> Path:
    """Write ``root/step-N``: into a temporary folder, hashed, flushed, then renamed.

    Args:
        root: the run's ``checkpoints`` folder.
        step: training steps done.
        write_files: writes the files into the folder it is given.
        parallel: the ranks that write their files together; the folder is made and renamed by rank 0.

    Raises:
        StorageError: the disk is full or not writable; older checkpoints are untouched.
    """
    partial = root / f".step-{step}.partial"
    final = root / f"step-{step}"
    is_main = parallel is None or parallel.is_main
    wait = parallel.barrier if parallel else lambda: None
    try:
        if is_main:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        wait()
        write_files(partial)
        wait()
        if is_main:
            _publish(partial, final)
        wait()
    except Exception as error:
        if is_main:
            shutil.rmtree(partial, ignore_errors=True)
        raise _storage_error(root, error) from error
    return final


def _publish(partial: Path, final: Path) -> None:
    hashes = {str(path.relative_to(partial)): _sha256(path) for path in _files(partial)}
    (partial / MANIFEST).write_text(json.dumps(hashes, indent=1))
    for path in [*_files(partial), partial]:
        _fsync(path)
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    _fsync(final.parent)


def steps_on_disk(root: Path) -> list[int]:
    """Steps of the complete checkpoints, newest first."""
    if not root.is_dir():
        return []
    matches = (_NAME.fullmatch(entry.name) for entry in root.iterdir() if (entry / MANIFEST).is_file())
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def intact_checkpoints(root: Path) -> Iterator[Path]:
    """Checkpoints whose every file has the recorded hash, newest first; others are reported and passed over."""
    for step in steps_on_disk(root):
        folder = root / f"step-{step}"
        damaged = damaged_files(folder)
        if damaged:
            logger.warning(
                "checkpoint %s is damaged (%s): falling back to an older one", folder, ", ".join(damaged)
            )
        else:
            yield folder


def damaged_files(folder: Path) -> list[str]:
    """Names of files that are missing from a checkpoint or do not have the recorded hash."""
    try:
        hashes: dict[str, str] = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return [MANIFEST]
    return [name for name, sha in hashes.items() if not (folder / name).is_file() or _sha256(folder / name) != sha]


def prune_checkpoints(root: Path, keep_last: int, keep_steps: Collection[int]) -> None:
    """Delete all but the newest ``keep_last`` checkpoints and those of ``keep_steps``."""
    for step in steps_on_disk(root)[keep_last:]:
        if step not in keep_steps:
            shutil.rmtree(root / f"step-{step}")


def save_training_state(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: Any,
    optimizer: Any,
    state: dict[str, Any],
    parallel: Parallel,
) -> None:
    """Write weights and tokenizer in Hugging Face's format, optimizer and random states as safetensors.

    Rank 0 writes what the ranks have in common; where the optimizer's state is in parts, each writes its own.
    """
    weights = parallel.weights(model)
    if parallel.is_main:
        model.save_pretrained(folder, state_dict=weights)
        tokenizer.save_pretrained(folder)
        (folder / "training_state.json").write_text(json.dumps(state, indent=1))
    if parallel.is_main or parallel.shards_optimizer:
        of_optimizer = parallel.training_tensors(model, optimizer)
        tensors = {f"optimizer/{name}": tensor for name, tensor in of_optimizer.items()}
        tensors |= {f"random/{name}": tensor for name, tensor in random_states().items()}
        save_file(tensors, folder / _state_file(parallel))


def load_training_state(
    folder: Path, model: PreTrainedModel, optimizer: Any, parallel: Parallel
) -> dict[str, Any]:
    """Restore what `save_training_state` wrote; returns its ``state``.

    Raises:
        StorageError: the checkpoint was written by another number of ranks, or does not fit the model.
    """
    path = folder / _state_file(parallel)
    if not path.is_file():
        found = sorted(file.name for file in folder.glob("training_state*.safetensors"))
        raise StorageError(
            f"no {path.name} in the checkpoint, only {', '.join(found) or 'no training state'}",
            str(folder),
            "resume with as many ranks and the same parallel.* as wrote it",
        )
    tensors = load_file(path)
    parallel.load_training_tensors(
        folder,
        model,
        optimizer,
        {name.removeprefix("optimizer/"): t for name, t in tensors.items() if name.startswith("optimizer/")},
    )
    restore_random_states(
        {name.removeprefix("random/"): t for name, t in tensors.items() if name.startswith("random/")}
    )
    state: dict[str, Any] = json.loads((folder / "training_state.json").read_text())
    return state


def _state_file(parallel: Parallel) -> str:
    if not parallel.shards_optimizer:
        return "training_state.safetensors"
    return f"training_state-{parallel.rank}-of-{parallel.world_size}.safetensors"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _storage_error(root: Path, error: Exception) -> Exception:
    # safetensors reports a full disk as its own error type, with the system's words in the text.
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if not full and "No space left" not in str(error) and not isinstance(error, OSError):
        return error
    free = shutil.disk_usage(root if root.exists() else root.parent).free
    return StorageError(
        f"cannot write a checkpoint: {error}",
        f"{root} ({free / 2**20:.0f} MiB free)",
        "free some space, then resume",
    )
