"""Run one configuration of a program on some seeds: a sweep of a single configuration."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loptune.errors import INTERRUPTED, ConfigError
from loptune.files import write_atomically
from loptune.yaml_document import dump_yaml, nearest, read_yaml
from sweep.record.sweep_record import open_sweep
from sweep.space.file import dump_space, load_space
from sweep.space.spec import SweepSpec

_STDERR = 2  # its file descriptor
PROGRAM = "program.yaml"  # the search space whose program runs, resolved, in a campaign's folder


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One configuration on some seeds."""

    name: str  # of its sweep
    settings: dict[str, Any]
    command: list[str] | None
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class BatchResults:
    """The results of a batch's runs, by seed."""

    scores: dict[int, float]
    failed: dict[int, str]  # reason


def store_program(spec: SweepSpec, folder: Path) -> None:
    """Write a search space with its resolved program into a folder."""
    write_atomically(folder / PROGRAM, dump_space(spec))


def check_batch(folder: Path, batch: Batch) -> None:
    """Check that the program accepts a configuration, before anything runs.

    Raises:
        ConfigError: it does not.
    """
    draft = folder / f".check-{PROGRAM}"
    write_atomically(draft, dump_yaml(batch_space(folder, batch)))
    try:
        load_space(draft)
    finally:
        draft.unlink(missing_ok=True)


def batch_space(folder: Path, batch: Batch) -> dict[str, Any]:
    """Return the search space that runs a batch.

    Raises:
        ConfigError: the program has no such setting; the error names the nearest.
    """
    document = read_yaml(folder / PROGRAM).data
    space = {
        "name": batch.name,
        "objective": document["objective"],
        "resources": document["resources"],
        "limits": document["limits"],
        "baselines": [{}],
        "search": {"configurations": 0},
        "seeds": list(batch.seeds),
    }
    if document.get("trainer"):
        if batch.command:
            raise ConfigError(
                "loptune's own trainer has no command",
                str(folder / PROGRAM),
                "change its settings: KEY=VALUE",
                code="no-command",
            )
        overrides = {**document["trainer"].get("overrides", {}), **batch.settings}
        return {**space, "trainer": {**document["trainer"], "overrides": overrides}}
    program = dict(document["program"])
    for key in batch.settings:
        if key not in program["defaults"]:
            raise ConfigError(
                f"the program has no setting {key}",
                f"{key}={batch.settings[key]}",
                nearest(key, program["defaults"]) or "list it in program.defaults",
                key=key,
                code="unknown-setting",
            )
    program["defaults"] = {**program["defaults"], **batch.settings}
    if batch.command:
        program["command"] = batch.command
    return {**space, "program": program}


def run_batch(folder: Path, batch: Batch, place: Path) -> BatchResults:
    """Run a batch, or resume it, and return its results.

    Args:
        folder: contains `PROGRAM`; the sweep's folder is written to ``runs/`` in it.
        batch: the runs.
        place: folder in which the program is started.

    Raises:
        ConfigError: the runs did not start or did not all end.
        KeyboardInterrupt: it was interrupted; a second call resumes it.
    """
    folder = folder.resolve()
    runs_dir = folder / "runs"
    space = folder / "spaces" / f"{batch.name}.yaml"
    space.parent.mkdir(exist_ok=True)
    write_atomically(space, dump_yaml(batch_space(folder, batch)))
    words = ["run", str(space), "--offline"]
    if (runs_dir / batch.name / "space.lock.yaml").is_file():
        words = ["resume", batch.name]
    line = [sys.executable, "-m", "sweep", *words, "--runs-dir", str(runs_dir)]
    # This command prints its answer on stdout, so the sweep's progress goes to stderr.
    ended = subprocess.run(line, cwd=place, stdout=_STDERR, check=False)
    if ended.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    if not (runs_dir / batch.name).is_dir():
        raise ConfigError(
            f"{batch.name} did not start",
            str(space),
            "the lines above say why; then run the same command again",
            code="batch-not-started",
        )
    scores = {}
    failed = {}
    for trial in open_sweep(runs_dir, batch.name).trials():
        seed = int(trial.seed)
        if trial.state == "COMPLETE":
            scores[seed] = trial.score
        elif trial.state == "FAIL":
            failed[seed] = trial.reason
        else:
            raise ConfigError(
                f"{trial.name} of {batch.name} is {trial.state}",
                str(runs_dir / batch.name),
                "the lines above say why; then run the same command again, which resumes it",
                code="batch-unfinished",
            )
    return BatchResults(scores, failed)
