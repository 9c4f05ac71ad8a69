"""Checkpoints on disk: written whole or not at all, verified before they are read, and
thinned out.
"""

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

from trainer.attempt import Attempt
from trainer.checkpoint.run_state import STATE_FILE
from trainer.errors import ConfigError, StorageError
from trainer.files import flush_to_disk, read_records, storage_error, write_atomically
from trainer.run_folder import RunFolder

if TYPE_CHECKING:  # torch takes seconds to import, and most commands only look what there is
    from trainer.parallel.ranks import Parallel

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d+)")
_PART = re.compile(r"training_state-(\d+)-of-\d+\.safetensors")
_SET_ASIDE = re.compile(r"damaged-step-(\d+)")
# optimizer and random states, which only a resumption needs
_TENSORS = "training_state*.safetensors"


def write_checkpoint(
    root: Path,
    step: int,
    write_files: Callable[[Path], None],
    parallel: "Parallel",
    attempt: Attempt,
) -> Path:
    """Write ``root/step-N``: into a temporary folder, hashed, flushed, then renamed.

    Each rank hashes and flushes what its ``write_files`` wrote, all at the same time; rank 0 makes
    and renames the folder.

    Raises:
        StorageError: the disk is full or not writable, or the run is another attempt's; older
            checkpoints are untouched.
    """
    # two attempts do not write into one folder
    partial = root / f".step-{step}.{attempt.number}.partial"
    final = root / f"step-{step}"
    try:
        if parallel.is_main:
            attempt.check()
            for unfinished in root.glob(".step-*.partial"):  # of processes that were killed
                shutil.rmtree(unfinished, ignore_errors=True)
            # not its parents: a run's folder that has vanished is not made anew
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
        # Before the partial one goes, and with it the sign of what has run out: space or inodes.
        told = storage_error("write a checkpoint", root, error)
        if parallel.is_main:
            shutil.rmtree(partial, ignore_errors=True)
        # safetensors reports a full disk as its own error type, with the system's words in the
        # text.
        if not isinstance(error, OSError) and "No space left" not in str(error):
            raise
        raise told from error
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
    """Return the steps of the checkpoints, newest first; not of those set aside as damaged."""
    return _steps(root, _NAME)


def intact_checkpoints(root: Path) -> Iterator[Path]:
    """Yield the checkpoints whose every file has the recorded hash, newest first; others are
    reported and passed over.
    """
    for step in steps_on_disk(root):
        folder = root / f"step-{step}"
        damaged = damaged_files(folder)
        if damaged:
            logger.warning(
                "checkpoint %s is damaged (%s): using an older one", folder, ", ".join(damaged)
            )
        else:
            yield folder


def newest_checkpoint(root: Path) -> Path | None:
    """Return the newest intact checkpoint, None where there has been none yet.

    Damaged ones get the name ``damaged-step-N``: the next to be written must not be taken for older
    than they.

    Raises:
        StorageError: there are checkpoints and none is intact; to begin again would lose the run's
            record.
    """
    newest = next(intact_checkpoints(root), None)
    for step in steps_on_disk(root):
        if newest is not None and newest.name == f"step-{step}":
            return newest
        _set_aside(root, step)
    set_aside = _steps(root, _SET_ASIDE)
    if set_aside:
        raise StorageError(
            f"no intact checkpoint: those of step {', '.join(map(str, set_aside))} are damaged",
            str(root),
            "put back a copy of one as step-N, or resume with --start-over",
        )
    return None


def damaged_files(folder: Path) -> list[str]:
    """Return names of files that are missing from a checkpoint or do not have the recorded hash.

    Raises:
        StorageError: a file may not be read, which says nothing about what is in it.
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
        ) from error
    except (OSError, ValueError, TypeError, AttributeError):
        return [MANIFEST]


def prune_checkpoints(root: Path, keep_last: int, keep_steps: Collection[int]) -> None:
    """Delete all but the newest ``keep_last`` checkpoints that have all their files, and those of
    ``keep_steps``.

    What is in the files was hashed as it was written and is again before it is read, not here:
    those of a model of 7 billion parameters are 107 GB.
    """
    steps = steps_on_disk(root)
    kept: list[int] = []
    for step in steps if len(steps) > keep_last else []:
        if len(kept) == keep_last:
            if step not in keep_steps:
                shutil.rmtree(root / f"step-{step}")
        elif not _has_all_files(root, step):
            _set_aside(root, step)
        else:
            kept.append(step)
    for step in _steps(root, _SET_ASIDE):
        if kept and step <= kept[0]:  # the run has come past it
            shutil.rmtree(root / f"damaged-step-{step}")


def keep_weights(root: Path, keep_steps: Collection[int]) -> None:
    """Keep only the weights of a finished run's newest checkpoint and of ``keep_steps``.

    Killed at any moment it leaves checkpoints that are intact, with or without their optimizer
    state, and is finished by doing it again. It does nothing where files of the newest checkpoint
    are missing.

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
            # half removed, it is no checkpoint
            shutil.rmtree(folder.rename(root / f".step-{step}.partial"))
            continue
        needed = {name: sha for name, sha in hashes.items() if not fnmatch(name, _TENSORS)}
        if needed != hashes:
            write_atomically(folder / MANIFEST, json.dumps(needed, indent=1))
        for path in folder.glob(_TENSORS) if needed else ():
            path.unlink()


def keeps_weights_only(folder: Path) -> bool:
    """Return whether `keep_weights` has taken what a resumption needs from a checkpoint."""
    hashes = _manifest(folder.parent, folder.name.removeprefix("step-"))
    return STATE_FILE in hashes and not any(fnmatch(name, _TENSORS) for name in hashes)


def check_whole(run_dir: Path, at_least: int, again: str) -> None:
    """Refuse to go on where a part of a run is gone: it would begin again, or lose its record, in
    silence.

    A run on record at step ``at_least`` or later has a checkpoint; ``again`` is the command that
    begins again.

    Raises:
        StorageError: its checkpoints or its record are gone.
    """
    checkpoints = RunFolder(run_dir).checkpoints
    metrics = RunFolder(run_dir).metrics
    last = max((int(record.get("step", 0)) for record in read_records(metrics)), default=0)
    # One that is being written, or is damaged, is a checkpoint for this.
    kept = checkpoints.is_dir() and any(checkpoints.iterdir())
    hint = f"put it back, or start again: {again}"
    if not kept and last >= at_least:
        raise StorageError(
            f"{run_dir.name} was at step {last}, and it has no checkpoint", str(checkpoints), hint
        )
    if kept and not metrics.is_file():
        raise StorageError(f"the record of {run_dir.name} is gone", str(metrics), hint)


def raise_if_ended(folder: Path) -> None:
    """Refuse to go on from a checkpoint of which only the weights were kept.

    Raises:
        ConfigError: says what to do instead.
    """
    if keeps_weights_only(folder):
        raise ConfigError(
            f"{folder.parent.parent.name} has ended, at {folder.name.replace('-', ' ')}: its "
            "weights were kept, its optimizer state was not",
            str(folder),
            "use its weights as the model of a new run: model.name_or_path=FOLDER",
        )


def start_over(run_dir: Path) -> Path | None:
    """Put a run's checkpoints and a copy of its record into ``earlier-N``, returned; None where it
    has neither.
    """
    folder = RunFolder(run_dir)
    checkpoints = folder.checkpoints
    if not checkpoints.is_dir() and not folder.metrics.is_file():
        return None
    number = next(n for n in itertools.count(1) if not (run_dir / f"earlier-{n}").exists())
    earlier = run_dir / f"earlier-{number}"
    earlier.mkdir()
    for record in (folder.metrics, folder.completions, folder.correctness):
        # A copy: from the original the tracker learns what MLflow has already.
        if record.exists():
            shutil.copy2(record, earlier)
    if checkpoints.is_dir():
        checkpoints.rename(earlier / checkpoints.name)
    return earlier


def _writer(path: Path) -> int:
    """Return the rank that writes a file of this name."""
    part = _PART.fullmatch(path.name)
    return int(part[1]) if part else 0


def _files(folder: Path) -> list[Path]:
    # safetensors writes into .tmpXXXXXX first: another rank's may be there now and gone when it is
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
    """Return hashes by file name; empty where the manifest is missing or damaged, and so says
    nothing.
    """
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

    # Hashing lets go of the interpreter, and a sharded state is one file per rank.
    with ThreadPoolExecutor(max_workers=8) as pool:
        return list(pool.map(of_file, paths))
