"""A sweep on disk: search space, folder, event log and trials. Needs neither Ray nor MLflow."""

import contextlib
import itertools
import json
import logging
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from dashboards.trial import TrialRecord
from loptune.errors import UserError, one_line, printable
from loptune.files import Record, read_records
from loptune.run_names import command_line
from sweep.record.folder import SweepFolder, all_sweeps, existing_sweep, read_spec
from sweep.search.event_log import read_event_log
from sweep.search.history import Configuration, open_trial, replay
from sweep.space.arms import arms
from sweep.space.checks import MAX_GRID
from sweep.space.points import Space, fingerprint
from sweep.space.spec import SweepSpec
from trainer.run_folder import RunFolder

_END_BYTES = 8192  # bytes read from the end of metrics.jsonl; more if its last line is longer
_MAX_COUNTED = 1000  # largest finite space whose duplicate points are counted


@dataclass(frozen=True)
class SweepRecord:
    """One sweep. Its event log is read once; after that the driver keeps `configurations` up to
    date.
    """

    spec: SweepSpec
    folder: SweepFolder

    @cached_property
    def events(self) -> list[Record]:
        """The records of the event log; safe to read while the driver writes.

        Raises:
            StorageError: the event log is damaged, or missing although trials were started.
        """
        self.folder.check_event_log()
        if not self.folder.event_log.exists():
            return []
        return list(read_event_log(self.folder.event_log))

    @cached_property
    def configurations(self) -> list[Configuration]:
        """All proposed configurations with their results."""
        return replay(self.events)

    def reloaded(self) -> "SweepRecord":
        """Return the sweep with its event log read again."""
        return SweepRecord(self.spec, self.folder)

    @property
    def planned(self) -> int:
        """Number of trials the sweep will have; retired finalists start no new trials."""
        planned = planned_trials(self.spec)
        for configuration in self.configurations:
            if configuration.retired:
                planned -= len(configuration.open_seeds(self.spec.seeds))
        return planned

    @property
    def results(self) -> list[TrialRecord]:
        """The trials that have ended, from the event log."""
        ended: list[TrialRecord] = []
        for configuration in self.configurations:
            ended += configuration.results.values()
        return ended

    def command(self, verb: str, *options: str) -> str:
        """Return a command line for this sweep that works in the current folder."""
        program = ["sweep"] if Path(sys.argv[0]).name == "sweep" else ["python", "-m", "sweep"]
        return command_line(
            *program, verb, self.folder.name, *options, runs_dir=self.folder.runs_dir
        )

    def trials(self, running: bool = False) -> list[TrialRecord]:
        """Return every proposed trial with its progress. A started trial without a result is
        RUNNING if ``running``.
        """
        trials = []
        for configuration in self.configurations:
            for seed in self.spec.seeds:
                if seed in configuration.results or not configuration.retired:
                    trials.append(self._with_progress(configuration, seed, running))
        return trials

    def device_hours(self) -> dict[str, float]:
        """Return trial -> GPU hours (CPU hours without GPUs) of recorded steps and evaluations."""
        devices = self.spec.resources.devices
        hours: dict[str, float] = {}
        for trial, record in self.metrics():
            hours[trial] = hours.get(trial, 0.0) + devices * spent_seconds(record) / 3600
        return hours

    def gpu_hours(self) -> float:
        """Return GPU hours of the steps and evaluations on record; 0 if trials have no GPU."""
        if not self.spec.resources.gpus_per_trial:
            return 0.0
        return sum(self.device_hours().values())

    def step_seconds(self) -> list[float]:
        """Return the measured ``time/step`` of all trials."""
        times = []
        for _, record in self.metrics():
            seconds = record.get("time/step")
            if seconds is not None:
                times.append(float(seconds))
        return times

    def failure_reason(self, trial: TrialRecord) -> str:
        """Return why a trial failed: the last error of its ranks, else the reason in the event log;
        empty if it did not fail.
        """
        if trial.state != "FAIL":
            return ""
        return failure_note(self.folder.trial(trial.name)) or printable(trial.reason)

    def metrics(self) -> Iterator[tuple[str, Record]]:
        """Yield every trial's name with each line of its record."""
        for metrics in self.folder.trials.glob("*/metrics.jsonl"):
            for record in read_records(metrics):
                yield metrics.parent.name, record

    def _with_progress(self, configuration: Configuration, seed: int, running: bool) -> TrialRecord:
        trial = configuration.results.get(seed) or open_trial(configuration, seed)
        run_dir = self.folder.trial(trial.name)
        if running and not trial.ended and RunFolder(run_dir).config.exists():
            trial = replace(trial, state="RUNNING")
        possible = {name: [value] for name, value in configuration.resolved.items()}
        return replace(
            trial,
            step=float(last_record(run_dir).get("step", math.nan)),
            total_steps=self.spec.program.steps(possible)[0],
            reason=self.failure_reason(trial),
        )


def open_sweep(runs_dir: Path, name: str) -> SweepRecord:
    """Return a sweep that was started before.

    Raises:
        ConfigError, MissingError, StorageError: see `existing_sweep` and `read_spec`.
    """
    folder = existing_sweep(runs_dir, name)
    return SweepRecord(read_spec(folder), folder)


def readable_sweeps(runs_dir: Path) -> Iterator[SweepRecord]:
    """Yield the sweeps of a runs folder whose space can be read, by name."""
    for folder in all_sweeps(runs_dir):
        with contextlib.suppress(UserError):
            yield SweepRecord(read_spec(folder), folder)


def planned_trials(spec: SweepSpec) -> int:
    """Return a sweep's number of trials; a finite space may have fewer points than requested."""
    return planned_configurations(spec) * len(spec.seeds)


def planned_configurations(spec: SweepSpec) -> int:
    """Return the number of configurations of a sweep, baselines included."""
    if spec.search.tune_within is not None:
        return sum(planned_configurations(arm) for arm in arms(spec).values())
    space = Space(spec.parameters)
    asked = spec.search.configurations
    if space.is_finite and space.grid_size(_MAX_COUNTED + 1) <= _MAX_COUNTED:
        different = _count_different_points(spec, space)
        if asked is None:
            return different
        return min(len(spec.baselines) + asked, different)
    if asked is None:
        asked = space.grid_size(MAX_GRID)
    return len(spec.baselines) + asked


def _count_different_points(spec: SweepSpec, space: Space) -> int:
    """Count the baselines and the points of a finite space. Repeated baselines, and points that
    differ only in a switch, run once.
    """
    baselines = (space.complete(baseline, spec.program) for baseline in spec.baselines)
    points = itertools.chain(baselines, space.points())
    return len({fingerprint(space.resolve(point, spec.program)) for point in points})


def spent_seconds(record: Record) -> float:
    """Return the seconds of a line of ``metrics.jsonl``: its training step and its evaluation."""
    return float(record.get("time/step") or 0) + float(record.get("time/evaluation") or 0)


def failure_note(run_dir: Path) -> str:
    """Return the last error of a trial; empty if there was none since it last started."""
    with contextlib.suppress(FileNotFoundError):
        return printable(RunFolder(run_dir).failure.read_text("utf-8").strip())
    return ""


def last_record(run_dir: Path) -> Record:
    """Return the last complete line of a trial's ``metrics.jsonl``; empty if there is none."""
    path = RunFolder(run_dir).metrics
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = path.stat().st_size
        end = _END_BYTES
        while True:
            file.seek(max(0, size - end))
            for line in reversed(file.read().decode("utf-8", "replace").splitlines()):
                with contextlib.suppress(ValueError, TypeError):  # cut off at its start or end
                    return dict(json.loads(line))
            if end >= size:
                break
            end *= 8
    return {}


@contextlib.contextmanager
def report_errors_printed(sweep: SweepRecord, log: Path) -> Iterator[None]:
    """Print why there is no report: a failing report must not keep a sweep from finishing."""
    try:
        yield
    except Exception as error:
        logging.getLogger(__name__).exception("no report")
        print(f"no report: {one_line(error)} (see {log}). To retry: {sweep.command('report')}")
