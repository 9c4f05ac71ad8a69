"""Runs of a configuration on given seeds: a sweep without a search."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loptune.files import read_records, write_atomically
from loptune.run_names import MAX_NAME_LENGTH
from sweep.gate.spec import PROGRAM
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.space.file import dump_space, load_space
from sweep.space.fixed import fixed_space
from sweep.space.scoring import guards_by
from sweep.space.spec import SweepSpec
from trainer.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Runs to start: a configuration on some seeds."""

    name: str  # name of its sweep
    settings: dict[str, Any]
    command: list[str] | None
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class BatchResults:
    """Results of a batch, by seed."""

    scores: dict[int, float]
    failed: dict[int, str]  # seed -> reason
    # seed -> reason, for runs that may have failed because of the machine: out of memory, or killed
    # by a signal
    killed: dict[int, str] = field(default_factory=dict)
    # metric of a guard -> seed -> value
    guards: dict[str, dict[int, float]] = field(default_factory=dict)


def batch_name(label: str, seeds: Sequence[int]) -> str:
    """Return the name of the sweep for the given seeds, after a ``label``. It contains all seeds,
    or a hash if the name would be too long, so a batch is resumed only if it has the same runs.
    """
    name = f"{label}-seeds-{'-'.join(map(str, seeds))}"
    if len(name) <= MAX_NAME_LENGTH:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    return f"{label}-seeds-{seeds[0]}-to-{seeds[-1]}-{digest}"


def store_program(spec: SweepSpec, folder: Path) -> None:
    """Write a search space with its resolved program into a folder."""
    write_atomically(folder / PROGRAM, dump_space(spec))


def batch_space(folder: Path, batch: Batch) -> SweepSpec:
    """Return the search space that runs a batch.

    Raises:
        ConfigError: the program does not accept the configuration.
    """
    spec = load_space(folder / PROGRAM)
    program = spec.program.with_settings(batch.settings, batch.command)
    return fixed_space(
        spec.with_program(program),
        name=batch.name,
        configurations=[{}],
        seeds=batch.seeds,
        changes={"parameters": {}},
    )


def unfinished(runs_dir: Path, name: str) -> str:
    """Return why a batch is unfinished; empty if all its trials have ended.

    Raises:
        ConfigError, StorageError: see `open_sweep`.
    """
    if not (runs_dir / name / "space.lock.yaml").is_file():
        return "it has not started"
    sweep = open_sweep(runs_dir, name)
    trials = sweep.trials()
    for trial in trials:
        if trial.state not in ("COMPLETE", "FAIL"):
            return f"trial {trial.name} is {trial.state}"
    if len(trials) < sweep.planned:  # it was killed before it recorded its first trials
        return f"{len(trials)} of {sweep.planned} trials have started"
    return ""


def read_results(runs_dir: Path, name: str) -> BatchResults:
    """Return the results of a finished batch.

    Raises:
        ConfigError, MissingError, StorageError: see `open_sweep`.
    """
    results = BatchResults(scores={}, failed={})
    sweep = open_sweep(runs_dir, name)
    for trial in sweep.trials():
        seed = int(trial.seed)
        if trial.state == "COMPLETE":
            results.scores[seed] = trial.score
            for metric, value in _guard_values(sweep, trial.name).items():
                results.guards.setdefault(metric, {})[seed] = value
        elif trial.by_settings:
            results.failed[seed] = trial.reason
        else:
            results.killed[seed] = trial.reason
    return results


def _guard_values(sweep: SweepRecord, trial: str) -> dict[str, float]:
    """Return guard metric -> value of a complete trial; NaN if the trial did not log it."""
    guards = guards_by(sweep.spec)
    if not guards:
        return {}
    records = read_records(RunFolder(sweep.folder.trial(trial)).metrics)
    return {metric: guard.value(records) for metric, guard in guards.items()}
