"""Report cgroup limits on processes and memory: the errors that they cause do not mention them."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")  # lines of number:controllers:path
# limit file -> file and key that count how often the limit was hit
_COUNTS = {
    "pids.max": ("pids.events", "max"),
    "memory.max": ("memory.events", "oom_kill"),
    "memory.limit_in_bytes": ("memory.oom_control", "oom_kill"),
}


def reached() -> Iterator[tuple[Path, int]]:
    """Yield this process's limits with the number of times each was hit."""
    with suppress(OSError):
        for line in _OWN.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            lowest = _GROUPS / controllers / path.strip("/")
            for folder in (lowest, *lowest.parents):
                for limit, (counter, word) in _COUNTS.items():
                    with suppress(OSError, ValueError, KeyError):
                        lines = (folder / counter).read_text().splitlines()
                        yield folder / limit, int(dict(map(str.split, lines))[word])


_AT_START = dict(reached())


def with_limits(text: str) -> str:
    """Append to the text the limits that were hit since this process started."""
    for path, count in reached():
        if count > _AT_START.get(path, 0):
            text += f"; limit reached: {path} is {path.read_text().strip()}"
    return text
