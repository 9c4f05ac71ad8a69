"""A sweep on disk: its space, its folder and what ledger and trials say; needs no Ray and no MLflow."""

import contextlib
import itertools
import json
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sweep.record.folder import SweepFolder, all_sweeps, command, existing_sweep, read_spec
from sweep.record.table import TrialRow, parameter_text
from sweep.search.history import Configuration, Result, TrialKey, best, outcome, replay
from sweep.search.ledger import read_ledger
from sweep.space.arms import arm_of, arms
from sweep.space.checks import MAX_GRID
from sweep.space.points import Space, fingerprint
from sweep.space.spec import ObjectiveSpec, SweepSpec
from trainer.errors import UserError, printable
from trainer.files import Record, read_json_lines
from trainer.shell.table import counted, number

FAILURE_FILE = "failure.txt"  # in a trial's folder: the last thing that went wrong
VERDICT_FILE = "verdict.json"  # beside the report
_MAX_COUNTED = 1000  # points of a finite space that are compared one by one


@dataclass(frozen=True)
class Best:
    """The winner of a sweep."""

    configuration: int
    score: float
    seeds: int
    parameters: dict[str, Any]

    def text(self, objective: ObjectiveSpec) -> str:
        """One line that names it."""
        return (
            f"best: configuration {self.configuration}  {parameter_text(self.parameters)}  "
            f"{objective.metric} {number(self.score)} (mean of {counted(self.seeds, 'seed')}, "
            f"last {counted(objective.window, 'evaluation').removeprefix('1 ')})"
        )


@dataclass(frozen=True)
class SweepRecord:
    """One sweep. Its ledger is read once; the driver keeps `configurations` up to date from then on."""

    spec: SweepSpec
    folder: SweepFolder

    @cached_property
    def configurations(self) -> list[Configuration]:
        """Everything proposed so far with its results, read without disturbing the driver that writes it."""
        return replay(read_ledger(self.folder.ledger)) if self.folder.ledger.exists() else []

    def read_again(self) -> "SweepRecord":
        """The sweep as its ledger is now."""
        return SweepRecord(self.spec, self.folder)

    @property
    def planned(self) -> int:
        """Number of trials the sweep will have."""
        return planned_trials(self.spec)

    def command(self, verb: str, *options: str) -> str:
        """A command line about this sweep, ready to be typed in the current folder."""
        return command(verb, self.folder, *options)

    def rows(self, running: bool = False) -> list[TrialRow]:
        """One row for every trial proposed so far; RUNNING are started ones while a driver is at work."""
        return [
            self._row(configuration, seed, running)
            for configuration in self.configurations
            for seed in self.spec.seeds
            if seed in configuration.results or not configuration.retired
        ]

    def best(self) -> Best | None:
        """The complete configuration that fresh seeds chose, else that of the best mean score over its seeds."""
        winner = best(self.configurations, self.spec.seeds, self.spec.objective.mode)
        if winner is not None and (chosen := self.told().get("configuration")) is not None:
            winner = next((one for one in self.configurations if str(one.number) == chosen), winner)
        return self.described(winner)

    def described(self, winner: Configuration | None) -> Best | None:
        """A configuration with its score; None where it has none."""
        if winner is None:
            return None
        score = outcome(winner, self.spec.seeds).score
        if score is None:
            return None
        return Best(winner.number, score, len(self.spec.seeds), dict(winner.resolved))

    def told(self) -> dict[str, Any]:
        """What the report says of fresh seeds: sentence, confirmed, configuration; empty where none were run."""
        path = self.folder.report / VERDICT_FILE
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def arm_lines(self) -> list[str]:
        """The best of every arm so far, in a line each; none where nothing is tuned within."""
        if self.spec.search.tune_within is None:
            return []
        lines, seeds, mode = [], self.spec.seeds, self.spec.objective.mode
        for name, arm in arms(self.spec).items():
            own = [one for one in self.configurations if arm_of(self.spec, one.parameters) == name]
            winner = best(own, seeds, mode)
            tuned = sum(len(one.results) for one in own)
            told = "no configuration is complete"
            if winner is not None:
                point = {key: value for key, value in winner.parameters.items() if key != self.spec.search.tune_within}
                told = f"best #{winner.number} {number(outcome(winner, seeds).score)}  {parameter_text(point)}"
            lines.append(f"{name}: {tuned} of {planned_trials(arm)} trials, {told}")
        return lines

    def told_best(self, best: Best) -> str:
        """A line that names the best, and below it the caveats."""
        return "\n       ".join([best.text(self.spec.objective), *self.caveats()])

    def caveats(self) -> list[str]:
        """Why the best is not known to be better, in a line each; what fresh seeds said, where they were run."""
        if told := self.told():
            return [str(told["sentence"])]
        if self.spec.search.tune_within is not None:
            return [f"each arm's best was chosen on these seeds; fresh ones compare them: {self.command('confirm')}"]
        if len(self.spec.seeds) == 1:
            return ["one seed is not evidence: seed noise may exceed this difference; see the report's next step"]
        if self.spec.adaptive:
            fresh = self.command("confirm", "--rounds")
            return [f"a candidate: the search followed these seeds, and only fresh ones give evidence: {fresh}"]
        return []

    def device_hours(self) -> dict[str, float]:
        """Trial -> hours of its GPUs, or of its CPUs where it has none, in recorded steps and evaluations."""
        resources = self.spec.resources
        devices = resources.gpus_per_trial or resources.workers_per_trial * resources.cpus_per_worker
        hours: dict[str, float] = {}
        for trial, record in self._metrics():
            seconds = float(record.get("time/step") or 0) + float(record.get("time/evaluation") or 0)
            hours[trial] = hours.get(trial, 0.0) + devices * seconds / 3600
        return hours

    def gpu_hours(self) -> float:
        """GPU hours of the steps and evaluations on record."""
        return sum(self.device_hours().values()) if self.spec.resources.gpus_per_trial else 0.0

    def step_seconds(self) -> list[float]:
        """The measured ``time/step`` of all trials."""
        found = (record.get("time/step") for _, record in self._metrics())
        return [float(seconds) for seconds in found if seconds is not None]

    def failure_reason(self, key: TrialKey, result: Result) -> str:
        """Why a trial failed: the last error of its ranks, else what its result says; empty if it did not."""
        if result.state != "FAIL":
            return ""
        return failure_note(self.folder.trial(key.name)) or printable(result.reason)

    def _metrics(self) -> Iterator[tuple[str, Record]]:
        for metrics in (self.folder.root / "trials").glob("*/metrics.jsonl"):
            for record, _ in read_json_lines(metrics):
                yield metrics.parent.name, record

    def _row(self, configuration: Configuration, seed: int, running: bool) -> TrialRow:
        key = TrialKey(configuration.number, seed)
        run_dir = self.folder.trial(key.name)
        result = configuration.results.get(seed)
        row = TrialRow(key.name, configuration.number, seed, parameters=configuration.resolved)
        row.step = last_step(run_dir)
        row.total_steps = configuration.resolved.get("max_steps", self.spec.base.max_steps)
        if result is not None:
            row.state, row.score = result.state, result.score
            row.reason = self.failure_reason(key, result)
        elif running and (run_dir / "config.yaml").exists():
            row.state = "RUNNING"
        return row


def open_sweep(runs_dir: Path, name: str) -> SweepRecord:
    """A sweep that was started before.

    Raises:
        ConfigError, MissingError, StorageError: as of `existing_sweep` and `read_spec`.
    """
    folder = existing_sweep(runs_dir, name)
    return SweepRecord(read_spec(folder), folder)


def readable_sweeps(runs_dir: Path) -> Iterator[SweepRecord]:
    """The sweeps of a runs folder whose space can be read, by name."""
    for folder in all_sweeps(runs_dir):
        with contextlib.suppress(UserError):
            yield SweepRecord(read_spec(folder), folder)


def planned_trials(spec: SweepSpec) -> int:
    """How many trials a sweep will have; a finite space ends when it is exhausted."""
    if spec.search.tune_within is not None:
        return sum(planned_trials(arm) for arm in arms(spec).values())
    searched = spec.search.configurations
    wanted = None if searched is None else len(spec.baselines) + searched
    space = Space(spec.parameters)
    if space.is_finite and space.grid_size(_MAX_COUNTED + 1) <= _MAX_COUNTED:
        baselines = (space.complete(baseline, spec.base) for baseline in spec.baselines)
        points = itertools.chain(baselines, space.grid(lambda parameter: parameter.options or []))
        # Baselines are not run again, nor are points that differ only in a switch.
        different = len({fingerprint(space.resolve(point, spec.base)) for point in points})
        wanted = different if wanted is None else min(wanted, different)
    elif wanted is None:
        wanted = len(spec.baselines) + space.grid_size(MAX_GRID)
    return wanted * len(spec.seeds)


def failure_note(run_dir: Path) -> str:
    """The last thing that went wrong in a trial; empty if nothing did since it was last started."""
    note = run_dir / FAILURE_FILE
    return printable(note.read_text(encoding="utf-8").strip()) if note.exists() else ""


def last_step(run_dir: Path) -> int:
    """The last training step in a trial's ``metrics.jsonl``, from the end of the file."""
    path = run_dir / "metrics.jsonl"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        with contextlib.suppress(ValueError, KeyError):  # torn, or cut at the beginning
            return int(json.loads(line)["step"])
    return 0


def evaluation_history(metrics_file: Path, metric: str) -> dict[int, float]:
    """Values of an evaluation metric by training step, from a trial's ``metrics.jsonl``; NaN where not finite."""
    if not metrics_file.exists():
        return {}
    return {
        int(record["step"]): math.nan if record[metric] is None else float(record[metric])
        for record, _ in read_json_lines(metrics_file)
        if metric in record
    }


@contextlib.contextmanager
def report_failure_told(sweep: SweepRecord, log: Path) -> Iterator[None]:
    """Say in a line why there is no report: a failure of it must not cost a sweep its end."""
    try:
        yield
    except Exception as error:
        logging.getLogger(__name__).exception("no report")
        print(f"no report: {' '.join(str(error).split())[:200]} ({log}); try {sweep.command('report')}")
