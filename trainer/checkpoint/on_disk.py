"""Checkpoints on disk: atomic writes, verified reads, and pruning."""

import hashlib
import itertools
import json
import logging
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from loptune.errors import ConfigError, StorageError
from loptune.files import flush_to_disk, read_records, storage_error, write_atomically
from trainer.attempt import Attempt
from trainer.checkpoint.run_state import STATE_FILE
from trainer.run_folder import RunFolder

if TYPE_CHECKING:  # torch takes seconds to import, and most commands only list checkpoints
    from trainer.parallel.ranks import Parallel

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d+)")
_PART = re.compile(r"training_state-(\d+)-of-\d+\.safetensors")
_SET_ASIDE = re.compile(r"damaged-step-(\d+)")
# optimizer and random states, needed only to resume
_TENSORS = "training_state*.safetensors"


def write_checkpoint(
    root: Path,
    step: int,
    write_files: Callable[[Path], None],
    parallel: "Parallel",
    attempt: Attempt,
) -> Path:
    """Write ``root/step-N`` atomically: write to a temporary folder, hash, flush, rename.

    Each rank hashes and flushes its own files in parallel. Rank 0 creates and renames the folder.

    Raises:
        StorageError: the disk is full or not writable, or a newer attempt runs. Older checkpoints
            are unchanged.
    """
    # separate folders for two attempts
    partial = root / f".step-{step}.{attempt.number}.partial"
    final = root / f"step-{step}"
    try:
        if parallel.is_main:
            attempt.check()
            for unfinished in root.glob(".step-*.partial"):  # left by killed processes
                shutil.rmtree(unfinished, ignore_errors=True)
            # not parents=True: do not recreate a deleted run folder
            root.mkdir(exist_ok=True)
            partial.mkdir()
        parallel.gather([], after_files=True)
        write_files(partial)
        written_here = [path for path in _files(partial) if _writer(path) == parallel.rank]
        hashes = {
            str(path.relative_to(partial)): sha
            for path, sha in zip(written_here, _sha256(written_here), strict=True)
        }
        for path in written_here:
            flush_to_disk(path)
        of_all = parallel.gather([hashes], after_files=True)
        if parallel.is_main:
            attempt.check()
            _publish(
                partial, final, {name: sha for part in of_all for name, sha in sorted(part.items())}
            )
        parallel.gather([], after_files=True)
    except Exception as error:
        # Diagnose before deleting the partial checkpoint, which frees the space or inodes that ran
        # out.
        fault = storage_error("write a checkpoint", root, error)
        if parallel.is_main:
            shutil.rmtree(partial, ignore_errors=True)
        # safetensors wraps a full disk in its own error type; only the message shows it.
        if not isinstance(error, OSError) and "No space left" not in str(error):
            raise
        raise fault from error
    return final


def _publish(partial: Path, final: Path, hashes: dict[str, str]) -> None:
    (partial / MANIFEST).write_text(json.dumps(hashes, indent=1))
    for path in (partial / MANIFEST, partial):
        flush_to_disk(path)
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    flush_to_disk(final.parent)


def steps_on_disk(root: Path) -> list[int]:
    """Return the steps of the checkpoints, newest first, excluding those renamed as damaged."""
    return _steps(root, _NAME)


def intact_checkpoints(root: Path) -> Iterator[Path]:
    """Yield the checkpoints whose files all match their hashes, newest first. Log a warning for
    each damaged checkpoint.

    Raises:
        StorageError: as in `damaged_files`.
    """
    for step in steps_on_disk(root):
        folder = root / f"step-{step}"
        damaged = damaged_files(folder)
        if damaged:
            logger.warning(
                "checkpoint %s is damaged (%s): falling back to an older one",
                folder,
                ", ".join(damaged),
            )
        else:
            yield folder


def newest_checkpoint(root: Path) -> Path | None:
    """Return the newest intact checkpoint, or None if there is no checkpoint yet.

    Newer, damaged checkpoints are renamed to ``damaged-step-N``, so that they do not count as newer
    than the next one written.

    Raises:
        StorageError: all checkpoints are damaged, so restarting would lose the run's record; or as
            in `damaged_files`.
    """
    newest = next(intact_checkpoints(root), None)
    for step in steps_on_disk(root):
        if newest is not None and newest.name == f"step-{step}":
            return newest
        _set_aside(root, step)
    set_aside = _steps(root, _SET_ASIDE)
    if set_aside:
        raise StorageError(
            f"every checkpoint is damaged: step {', '.join(map(str, set_aside))}",
            str(root),
            "restore a copy as step-N, or resume with --start-over",
            code="all-checkpoints-damaged",
        )
    return None


def damaged_files(folder: Path) -> list[str]:
    """Return the names of files that are missing or do not match their recorded hash.

    Raises:
        StorageError: no permission to read a file, so its integrity is unknown.
    """
    try:
        hashes = json.loads((folder / MANIFEST).read_text())
        present = {name: folder / name for name in hashes if (folder / name).is_file()}
        present_hashes = dict(zip(present, _sha256(list(present.values())), strict=True))
        return [name for name, sha in hashes.items() if present_hashes.get(name) != sha]
    except PermissionError as error:
        raise StorageError(
            f"cannot read the checkpoint: {error.strerror}",
            str(error.filename),
            "change the permissions",
            code="checkpoint-unreadable",
        ) from error
    except (OSError, ValueError, TypeError, AttributeError):
        return [MANIFEST]


def prune_checkpoints(root: Path, keep_last: int, keep_steps: Collection[int]) -> None:
    """Delete all checkpoints except the newest ``keep_last`` complete ones and the ones in
    ``keep_steps``.

    An incomplete checkpoint that is newer than the ones to keep is renamed as damaged. This only
    checks that files exist. Hashes are computed on write and on load, not here: a 7B checkpoint is
    107 GB.
    """
    steps = steps_on_disk(root)  # newest first
    if len(steps) <= keep_last:
        return  # nothing to delete, so nothing is checked
    kept: list[int] = []
    for step in steps:
        if len(kept) < keep_last:
            if _has_all_files(root, step):
                kept.append(step)
            else:
                _set_aside(root, step)
        elif step not in keep_steps:
            shutil.rmtree(root / f"step-{step}")
    if not kept:
        return
    for step in _steps(root, _SET_ASIDE):
        if step <= kept[0]:  # the run has passed it
            shutil.rmtree(root / f"damaged-step-{step}")


def keep_weights(root: Path, keep_steps: Collection[int]) -> None:
    """Reduce a finished run's checkpoints to the weights of the newest one and of ``keep_steps``.

    Safe to interrupt and repeat: every checkpoint stays intact, with or without its optimizer
    state. Does nothing if the newest checkpoint is incomplete.

    Raises:
        OSError: the folder cannot be written.
    """
    steps = steps_on_disk(root)
    if not steps or not _has_all_files(root, steps[0]):
        return
    for folder in (*root.glob(".step-*.partial"), *root.glob("damaged-step-*")):
        shutil.rmtree(folder)
    kept = {steps[0], *keep_steps}
    for step in steps:
        folder = root / f"step-{step}"
        hashes = _manifest(root, step)
        if step not in kept:
            # rename first, so that a half-deleted folder is not taken for a checkpoint
            shutil.rmtree(folder.rename(root / f".step-{step}.partial"))
            continue
        needed = {name: sha for name, sha in hashes.items() if not fnmatch(name, _TENSORS)}
        if needed != hashes:
            write_atomically(folder / MANIFEST, json.dumps(needed, indent=1))
        if needed:
            for path in folder.glob(_TENSORS):
                path.unlink()


def is_weights_only(folder: Path) -> bool:
    """Return whether `keep_weights` has removed the state needed to resume from a checkpoint."""
    hashes = _manifest(folder.parent, folder.name.removeprefix("step-"))
    return STATE_FILE in hashes and not any(fnmatch(name, _TENSORS) for name in hashes)


def check_complete(run_dir: Path, at_least: int, again: str) -> None:
    """Raise if a run's checkpoints or record are missing, instead of silently restarting it or
    losing its record.

    A run whose record reaches step ``at_least`` must have a checkpoint. ``again`` is the command
    that starts over.

    Raises:
        StorageError: checkpoints or record are missing.
    """
    checkpoints = RunFolder(run_dir).checkpoints
    metrics = RunFolder(run_dir).metrics
    last = max((int(record.get("step", 0)) for record in read_records(metrics)), default=0)
    # partial and damaged checkpoints count here
    kept = checkpoints.is_dir() and any(checkpoints.iterdir())
    hint = f"restore it, or start over: {again}"
    if not kept and last >= at_least:
        raise StorageError(
            f"{run_dir.name} reached step {last} but has no checkpoint",
            str(checkpoints),
            hint,
            code="checkpoint-lost",
        )
    if kept and not metrics.is_file():
        raise StorageError(
            f"the record of {run_dir.name} is missing", str(metrics), hint, code="record-lost"
        )


def raise_if_weights_only(folder: Path) -> None:
    """Raise if a checkpoint has no optimizer state, because only its weights were kept.

    Raises:
        ConfigError: only weights were kept; the error suggests a new run from them.
    """
    if is_weights_only(folder):
        raise ConfigError(
            f"{folder.parent.parent.name} finished at {folder.name.replace('-', ' ')}; only "
            "its weights were kept, so it cannot be resumed",
            str(folder),
            "start a new run from its weights: model.name_or_path=FOLDER",
            code="weights-only",
        )


def start_over(run_dir: Path) -> Path | None:
    """Move a run's checkpoints and copy its record into ``earlier-N``. Return that folder, or None
    if there is nothing to save.
    """
    folder = RunFolder(run_dir)
    checkpoints = folder.checkpoints
    if not checkpoints.is_dir() and not folder.metrics.is_file():
        return None
    number = next(n for n in itertools.count(1) if not (run_dir / f"earlier-{n}").exists())
    earlier = run_dir / f"earlier-{number}"
    earlier.mkdir()
    for record in (folder.metrics, folder.completions, folder.correctness):
        # A copy: the tracker still needs the original, which records what MLflow already has.
        if record.exists():
            shutil.copy2(record, earlier)
    if checkpoints.is_dir():
        checkpoints.rename(earlier / checkpoints.name)
    return earlier


def _writer(path: Path) -> int:
    """Return the rank that wrote this file."""
    part = _PART.fullmatch(path.name)
    return int(part[1]) if part else 0


def _files(folder: Path) -> list[Path]:
    # Skip safetensors' temporary .tmpXXXXXX files: another rank's file may vanish before it is
    # read.
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".tmp")
    )


def _steps(root: Path, name: re.Pattern[str]) -> list[int]:
    if not root.is_dir():
        return []
    matches = (name.fullmatch(entry.name) for entry in root.iterdir() if entry.is_dir())
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def _manifest(root: Path, step: int | str) -> dict[str, str]:
    """Return the hashes by file name; empty if the manifest is missing or unreadable."""
    try:
        hashes: dict[str, str] = json.loads((root / f"step-{step}" / MANIFEST).read_text())
        return dict(hashes)
    except (OSError, ValueError, TypeError):
        return {}


def _has_all_files(root: Path, step: int) -> bool:
    names = _manifest(root, step)
    return bool(names) and all((root / f"step-{step}" / name).is_file() for name in names)


def _set_aside(root: Path, step: int) -> None:
    aside = root / f"damaged-step-{step}"
    shutil.rmtree(aside, ignore_errors=True)
    (root / f"step-{step}").rename(aside)


def _sha256(paths: Sequence[Path]) -> list[str]:
    def of_file(path: Path) -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    # hashlib releases the GIL, and a sharded state has one file per rank.
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(of_file, paths))
