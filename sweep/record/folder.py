"""A sweep's folder: paths, lock and stop file."""

import contextlib
import itertools
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from loptune.errors import ConfigError, MissingError, StorageError
from loptune.files import storage_error, write_atomically
from loptune.identity import IDENTITY
from loptune.run_names import check_name
from sweep.space.file import dump_space, load_space
from sweep.space.spec import SweepSpec
from trainer.run_folder import RunFolder

_HEADING = re.compile(r"# crc32 of the lines below: ([0-9a-f]{8})")


@dataclass
class SweepFolder:
    """Paths of one sweep: ``runs/NAME``."""

    runs_dir: Path
    name: str

    def __post_init__(self) -> None:
        self.root = root = self.runs_dir / self.name
        # the search space with the trainer configuration resolved
        self.space = root / "space.lock.yaml"
        self.source = root / "space.source.json"  # which file the space was read from
        # event log: one line per submitted trial and result; the source of truth
        self.event_log = root / "events.jsonl"
        self.lock = root / "lock"  # held by the driver; contains its process id
        # asks the driver and every rank to stop at the next training step
        self.stop = root / "stop"
        self.log = root / "driver.log"  # output of Ray and the driver
        # credentials for ranks on a cluster; the file exists while a driver runs
        self.credentials = root / "credentials.json"
        self.report = root / "report"
        self.trials = root / "trials"
        self.passed_checks = root / "passed-checks"  # checks that trials need not repeat

    @property
    def confirmation(self) -> "SweepFolder":
        """The folder in which the finalists run on fresh seeds: the folder of the latest
        confirmation, or of the first confirmation if none was started.
        """
        return [self.numbered_confirmation(1), *self.confirmations][-1]

    @property
    def confirmations(self) -> list["SweepFolder"]:
        """The confirmations that were started, in this order: NAME-confirm, NAME-confirm-2, ..."""
        started: list[SweepFolder] = []
        for number in itertools.count(1):
            folder = self.numbered_confirmation(number)
            if not folder.event_log.exists():
                return started
            started.append(folder)
        raise AssertionError("unreachable: the count has no end")

    def numbered_confirmation(self, number: int) -> "SweepFolder":
        """Return the folder of the confirmation with this number, starting at 1."""
        suffix = "-confirm" if number == 1 else f"-confirm-{number}"
        return SweepFolder(self.runs_dir, f"{self.name}{suffix}")

    def trial(self, name: str) -> Path:
        """Return the folder of one trial."""
        return self.trials / name

    def exists(self) -> bool:
        """Return whether a sweep was started here."""
        return self.space.exists()

    def check_event_log(self) -> None:
        """Check that the event log exists, and is not empty, if trials were started.

        Raises:
            StorageError: it is missing or empty.
        """
        is_empty = not self.event_log.exists() or self.event_log.stat().st_size == 0
        if is_empty and self.trials.exists():
            raise StorageError(
                f"the event log of sweep {self.name} is missing",
                str(self.event_log),
                "restore the file from a backup, or run the space again with another --name",
                code="event-log-missing",
            )


def sweep_folder(runs_dir: Path, name: str) -> SweepFolder:
    """Return the folder of a sweep that may or may not exist.

    Raises:
        ConfigError: invalid name, for example one that leads out of the runs folder.
    """
    return SweepFolder(runs_dir.resolve(), check_name(name))


def existing_sweep(runs_dir: Path, name: str) -> SweepFolder:
    """Return the folder of a sweep that was started before.

    Raises:
        ConfigError: invalid name.
        MissingError: no such sweep.
        StorageError: the folder exists, but its search space or event log is missing.
    """
    folder = sweep_folder(runs_dir, name)
    if folder.exists():
        folder.check_event_log()
        return folder
    if folder.event_log.exists():
        raise StorageError(
            f"the search space of sweep {name} is missing",
            str(folder.space),
            "restore the file from a backup",
            code="space-missing",
        )
    names = ", ".join(sorted(sweep.name for sweep in all_sweeps(runs_dir))) or "none"
    raise MissingError(
        f"no sweep named {name}", str(folder.root), f"sweeps here: {names}", code="no-such-sweep"
    )


def all_sweeps(runs_dir: Path) -> list[SweepFolder]:
    """Return the sweeps of a runs folder by name."""
    spaces = sorted(runs_dir.resolve().glob("*/space.lock.yaml"))
    return [SweepFolder(runs_dir.resolve(), space.parent.name) for space in spaces]


def newest_sweep(runs_dir: Path) -> str:
    """Return the name of the sweep that was started last.

    Raises:
        MissingError: there are no sweeps.
    """
    folders = all_sweeps(runs_dir)
    if not folders:
        raise MissingError(
            "there are no sweeps yet", str(runs_dir), "sweep run quickstart", code="no-sweeps"
        )
    return max(folders, key=lambda folder: folder.space.stat().st_mtime).name


def read_spec(folder: SweepFolder) -> SweepSpec:
    """Return the search space that a sweep was started with. A file without the checksum line is
    read unchecked.

    Raises:
        MissingError: the file is missing.
        StorageError: the checksum differs, or a different version of loptune wrote the file.
        ConfigError: the file was edited and is no longer valid.
    """
    # load_space reports a missing file
    content = folder.space.read_bytes() if folder.exists() else b""
    first, _, rest = content.partition(b"\n")
    heading = _HEADING.fullmatch(first.decode("utf-8", "replace"))
    if heading and int(heading[1], 16) != zlib.crc32(rest):
        raise StorageError(
            f"the search space of sweep {folder.name} is damaged: its checksum differs",
            str(folder.space),
            "restore it from a backup; if you edited it on purpose, remove its first line",
            code="space-checksum",
        )
    try:
        return load_space(folder.space)
    except ConfigError as error:
        # These errors follow from the file alone, and its checksum shows that nobody edited it.
        if heading is None or error.code not in ("unknown-key", "literal-error"):
            raise
        raise StorageError(
            f"a different version of loptune started sweep {folder.name}: {error.what}",
            error.where,
            f"{error.hint}\n"
            "       The version that started the sweep can still read and resume it. With this "
            "version, run its space again under another --name.",
            error.key,
            code="of-another-version",
        ) from None


def write_spec(folder: SweepFolder, spec: SweepSpec) -> None:
    """Write a sweep's search space with the resolved trainer configuration, below a checksum line.

    Raises:
        OSError: the folder cannot be written. An existing file is unchanged.
    """
    text = dump_space(spec)
    write_atomically(
        folder.space, f"# crc32 of the lines below: {zlib.crc32(text.encode()):08x}\n{text}"
    )


def free_name(folder: SweepFolder) -> None:
    """Remove the files of a start that failed before any trial was submitted; keep all other
    files.
    """
    own = folder.root / IDENTITY
    written = (folder.space, folder.source, folder.lock, folder.log, folder.stop, own)
    for path in (RunFolder(folder.root).inputs, *written):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the folder is not empty, or does not exist
        folder.root.rmdir()


def request_stop(folder: SweepFolder) -> None:
    """Ask the driver and all ranks to stop at the next training step.

    Raises:
        StorageError: the request cannot be written, e.g. because another user owns the folder.
    """
    if folder.stop.exists():  # perhaps another user's
        return
    try:
        folder.stop.touch()
    except OSError as error:
        raise storage_error("stop the sweep", folder.stop, error) from error
