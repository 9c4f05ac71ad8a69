"""Limits of this process's control groups on processes and memory, which nothing that fails on them
names.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")  # lines of number:controllers:path
# file of a limit -> the file and the word that count how often it was reached
_COUNTS = {
    "pids.max": ("pids.events", "max"),
    "memory.max": ("memory.events", "oom_kill"),
    "memory.limit_in_bytes": ("memory.oom_control", "oom_kill"),
}


def _reached() -> Iterator[tuple[Path, int]]:
    """Yield the limits of this process, with how often each was reached."""
    with suppress(OSError):
        for line in _OWN.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            lowest = _GROUPS / controllers / path.strip("/")
            for folder in (lowest, *lowest.parents):
                for limit, (counter, word) in _COUNTS.items():
                    with suppress(OSError, ValueError, KeyError):
                        lines = (folder / counter).read_text().splitlines()
                        yield folder / limit, int(dict(map(str.split, lines))[word])


_AT_START = dict(_reached())


def with_limits(text: str) -> str:
    """Return the text, and behind it the limits that were reached since this process began."""
    for path, count in _reached():
        if count > _AT_START.get(path, 0):
            text += f"; limit reached: {path} is {path.read_text().strip()}"
    return text
