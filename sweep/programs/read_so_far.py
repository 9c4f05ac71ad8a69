"""Store how far a command's files have been read, over all processes of its trial.

A command that starts again usually appends to the files of its first process. Without the stored
offset, the rank would read the lines of the first process again as new ones.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from loptune.files import write_atomically
from trainer.run_folder import RunFolder

Position = tuple[int, str]  # number of bytes read, and the end of the last line in them


class ReadSoFar:
    """The positions of one trial's readers, and the steps that a later process abandoned.

    Stored in ``lines_read.json`` of the trial's folder. ``positions`` maps the name of a file to
    its position.

    Args:
        run_dir: the trial's folder.
        correctness: the file in which the command records the problems that it solved.
    """

    def __init__(self, run_dir: Path, correctness: Path) -> None:
        self._run_dir = run_dir
        self._path = run_dir / "lines_read.json"
        self._correctness = correctness
        self.positions: dict[str, Position] = {}
        # size in bytes and hash of the correctness file at the start of the running process
        self._before: tuple[int, str] = (0, "")
        # (size, hash, step): in the first `size` bytes, lines of later steps are abandoned
        self._abandoned: list[tuple[int, str, int]] = []
        if self._path.is_file():
            stored = json.loads(self._path.read_text("utf-8"))
            for name, (offset, last) in stored.get("positions", {}).items():
                self.positions[name] = (offset, last)
            for size, digest, step in stored.get("abandoned", []):
                self._abandoned.append((size, digest, step))

    def begin_process(self, positions: Mapping[str, Position]) -> None:
        """Store the positions, and the size and hash of the correctness file, before a process
        starts.
        """
        content = self._correctness.read_bytes() if self._correctness.is_file() else b""
        self._before = (len(content), _digest(content))
        self.save(positions)

    def save(self, positions: Mapping[str, Position]) -> None:
        """Store the positions up to which the files are recorded."""
        self.positions |= positions
        state = {"positions": self.positions, "abandoned": self._abandoned}
        write_atomically(self._path, json.dumps(state))

    def abandon(self, step: int) -> None:
        """Exclude the correctness lines that earlier processes wrote after this step."""
        self._abandoned.append((*self._before, step))

    def copy_correctness(self) -> None:
        """Copy the command's correctness file to the trial's folder, without abandoned steps."""
        if not self._correctness.is_file():
            return
        content = self._correctness.read_bytes()
        # (size, step): in the first `size` bytes, lines of steps after `step` are abandoned
        limits: list[tuple[int, int]] = []
        for size, digest, step in self._abandoned:
            if _digest(content[:size]) == digest:  # otherwise the file was rewritten
                limits.append((size, step))
        kept = []
        offset = 0
        for line in content.splitlines(keepends=True):
            if not any(offset < size and _step_of(line) > step for size, step in limits):
                kept.append(line)
            offset += len(line)
        write_atomically(RunFolder(self._run_dir).correctness, b"".join(kept))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _step_of(line: bytes) -> float:
    """Return the step of a correctness line; minus infinity for a line without a step."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return float("-inf")
