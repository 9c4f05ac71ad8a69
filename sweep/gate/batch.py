"""Run configurations of a program on given seeds, as a sweep without a search."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loptune.errors import INTERRUPTED, ConfigError
from loptune.files import read_records, write_atomically
from loptune.run_names import MAX_NAME_LENGTH
from sweep.gate.spec import PROGRAM
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.search.history import explained_by_settings
from sweep.space.file import dump_space, load_space
from sweep.space.fixed import fixed_space
from sweep.space.scoring import guards_by
from sweep.space.spec import SweepSpec
from trainer.run_folder import RunFolder

_SCALARS = (str, int, float, bool)
_STDERR = 2  # file descriptor of standard error
_PACKAGES = ("loptune", "rewards", "trainer", "dashboards", "sweep")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Runs to start: one or more configurations of a program on the same seeds."""

    name: str  # name of its sweep
    settings: dict[str, Any]
    command: list[str] | None
    seeds: tuple[int, ...]
    further: tuple[
        dict[str, Any], ...
    ] = ()  # settings of further configurations with the same command


@dataclass(frozen=True)
class BatchResults:
    """Results of one configuration in a batch, by seed."""

    scores: dict[int, float]
    failed: dict[int, str]  # reason
    # seeds that may have failed because of the machine: out of memory, or killed by a signal
    killed: dict[int, str] = field(default_factory=dict)
    # metric of a guard -> seed -> value
    guards: dict[str, dict[int, float]] = field(default_factory=dict)


def batch_name(label: str, seeds: Sequence[int]) -> str:
    """Return the name of the sweep for the given seeds. It contains the seeds, so a batch is
    resumed only if it has the same runs.
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
        ConfigError: the program does not accept a configuration.
    """
    spec = load_space(folder / PROGRAM)
    varied = _varied(batch)
    settings = {key: value for key, value in batch.settings.items() if key not in varied}
    configurations = []
    for each in (batch.settings, *batch.further):
        configurations.append({key: each[key] for key in varied})
    return fixed_space(
        spec.with_program(spec.program.with_settings(settings, batch.command)),
        name=batch.name,
        configurations=configurations,
        seeds=batch.seeds,
        changes={"parameters": {key: {"choice": values} for key, values in varied.items()}},
    )


def _varied(batch: Batch) -> dict[str, list[Any]]:
    """Return setting -> distinct values, for the settings in which the configurations differ."""
    values: dict[str, list[Any]] = {}
    for settings in (batch.settings, *batch.further):
        for key, value in settings.items():
            known = values.setdefault(key, [])
            if value not in known:
                known.append(value)
    return {key: known for key, known in values.items() if len(known) > 1}


def complete_settings(folder: Path, arms: Sequence[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Return the settings of configurations with a value for every key that one of them sets, so
    that one sweep can run them; None if that is not possible: a sweep runs no configuration twice.

    A key that a configuration does not set has the program's default.
    """
    keys = sorted({key for settings in arms for key in settings})
    defaults = load_space(folder / PROGRAM).program.values({}, keys)
    completed: list[dict[str, Any]] = []
    for settings in arms:
        own = {key: settings.get(key, defaults[key]) for key in keys}
        if own in completed or not all(isinstance(value, _SCALARS) for value in own.values()):
            return None
        completed.append(own)
    return completed


def run_batch(
    folder: Path,
    batch: Batch,
    place: Path,
    *,
    checked_out: bool = False,
    parallel: int | None = None,
) -> list[BatchResults]:
    """Run a batch, or resume it, and return the results of each of its configurations.

    A finished batch is only read. Runs that the machine killed are run again.

    Args:
        folder: contains `PROGRAM`; the sweep's folder is written to ``runs/`` in it.
        batch: the runs to start.
        place: folder in which the program is started.
        checked_out: whether ``place`` is a checkout, whose packages take precedence over installed
            ones.
        parallel: number of parallel runs; None: as many as the machine can run.

    Raises:
        ConfigError: the runs did not start, or some are unfinished.
        KeyboardInterrupt: it was interrupted; a second call resumes it.
    """
    folder = folder.resolve()
    runs_dir = folder / "runs"
    words = ["resume", batch.name]
    if not (runs_dir / batch.name / "space.lock.yaml").is_file():
        space = folder / "spaces" / f"{batch.name}.yaml"
        space.parent.mkdir(exist_ok=True)
        write_atomically(space, dump_space(batch_space(folder, batch)))
        words = ["run", str(space), "--offline"]
    elif not _unfinished(runs_dir, batch.name):
        results = _results(runs_dir, batch)
        if not any(each.killed for each in results):
            return results
        words.append("--retry-failed")
    if parallel is not None:
        words += ["--cpus", str(_cpus(folder, parallel))]
    # -P prevents a user's own sweep.py in the folder from being started instead. The process gets
    # neither standard input, where an MCP client may write, nor standard output, where the answer
    # is printed.
    line = [sys.executable, "-P", "-m", "sweep", *words, "--runs-dir", str(runs_dir)]
    environment = dict(os.environ)
    if checked_out:
        environment["PYTHONPATH"] = _import_path(place)
    ended = subprocess.run(
        line, cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=_STDERR, check=False
    )
    if ended.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    if not (runs_dir / batch.name).is_dir():
        raise ConfigError(
            f"{batch.name} did not start",
            str(folder / "spaces" / f"{batch.name}.yaml"),
            "fix the error above, then run the same command again",
            code="batch-not-started",
        )
    if unfinished := _unfinished(runs_dir, batch.name):
        raise ConfigError(
            f"{batch.name} is unfinished: {unfinished}",
            str(runs_dir / batch.name),
            "fix the error above, then run the same command again, which resumes it",
            code="batch-unfinished",
        )
    return _results(runs_dir, batch)


def _cpus(folder: Path, parallel: int) -> int:
    """Return the CPUs that so many runs at the same time take."""
    resources = load_space(folder / PROGRAM).resources
    return parallel * resources.cpus_per_trial


def _import_path(place: Path) -> str:
    """Return the PYTHONPATH for a checkout, so that it imports its own packages instead of an
    editable install. Folders that contain a module with the name of a loptune package are left out.
    """
    folders = []
    for folder in (place / "src", place):
        shadows = any(
            (folder / name).exists() or (folder / f"{name}.py").exists() for name in _PACKAGES
        )
        if folder.is_dir() and not shadows:
            folders.append(str(folder))
    before = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*folders, before] if before else folders)


def _unfinished(runs_dir: Path, name: str) -> str:
    """Return a description of the unfinished trials of a batch; empty if there are none."""
    sweep = open_sweep(runs_dir, name)
    trials = sweep.trials()
    for trial in trials:
        if trial.state not in ("COMPLETE", "FAIL"):
            return f"trial {trial.name} is {trial.state}"
    if len(trials) < sweep.planned:  # the driver was killed before it recorded its first trials
        return f"{len(trials)} of {sweep.planned} trials have started"
    return ""


def _results(runs_dir: Path, batch: Batch) -> list[BatchResults]:
    """Return the results of a finished batch, by configuration."""
    results = [
        BatchResults(scores={}, failed={}, killed={}) for _ in (batch.settings, *batch.further)
    ]
    sweep = open_sweep(runs_dir, batch.name)
    for trial in sweep.trials():
        own = results[int(trial.configuration)]
        seed = int(trial.seed)
        if trial.state == "COMPLETE":
            own.scores[seed] = trial.score
            for metric, value in _guard_values(sweep, trial.name).items():
                own.guards.setdefault(metric, {})[seed] = value
        elif explained_by_settings(trial.reason):
            own.failed[seed] = trial.reason
        else:
            own.killed[seed] = trial.reason
    return results


def _guard_values(sweep: SweepRecord, trial: str) -> dict[str, float]:
    """Return guard metric -> value of a complete trial; NaN if the trial did not log it."""
    guards = guards_by(sweep.spec)
    if not guards:
        return {}
    records = read_records(RunFolder(sweep.folder.trial(trial)).metrics)
    return {metric: guard.value(records) for metric, guard in guards.items()}
