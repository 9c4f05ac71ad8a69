"""Print the events of trials as lines.

The driver calls these methods, and only logs their exceptions (`sweep.driver.attempts.Attempts`):
they print, and do not affect the sweep.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from rich.console import Console
from rich.text import Text

from loptune.errors import joined, printable, shortened
from loptune.files import read_records
from loptune.reporting import PREFIX
from loptune.run_names import command_line
from loptune.terminal.logs import progress_is_shown
from loptune.terminal.table import counted, number
from sweep.programs.base import ResourcesSpec
from sweep.record.folder import SweepFolder
from sweep.record.guard_scores import missed_guard, unlogged_guards
from sweep.record.trial_table import setting_text
from sweep.search.trial_report import TrialReport
from sweep.space.spec import SweepSpec
from sweep.trials.limits import with_limits
from trainer.run_folder import RunFolder

# seconds after which a waiting trial is reported; a trial whose resources are free starts sooner
_WAITING_S = 30.0
_CHECK_INTERVAL_S = 0.5
_SILENT_S = 120.0  # a command without a metric line for this long may never log one
_SILENT_LINES = 3  # number of output lines to print
_SILENT_BYTES = 65_536  # number of bytes to read from the end of the output
_MAX_LINE = 160  # maximum number of characters of an output line


@dataclass(frozen=True)
class StartupMessage:
    """A message that is printed when a file of the first trial contains a string."""

    file: str
    content: str
    message: str


STARTUP_MESSAGES = (
    StartupMessage("config.yaml", "", "ranks have started and are loading the program"),
    StartupMessage("stderr.log", "ready at step", "program loaded; starting the first step"),
    StartupMessage("metrics.jsonl", "}", "first step done"),
)
CONSOLE = Console(highlight=False)
_HEADLINE = "eval/accuracy"  # shown in addition to the score, which is a mean over evaluations


def say(text: str) -> None:
    """Print a line above the live table, if there is one."""
    CONSOLE.print(Text(printable(text)), soft_wrap=True)


class EventLines:
    """Prints one line per event of a trial.

    Args:
        folder: the sweep's folder.
        spec: the search space.
        label: text before the names of trials, if trials of several sweeps run side by side.
        reports_startup: whether the start of the first trial's program is reported.
    """

    def __init__(
        self, folder: SweepFolder, spec: SweepSpec, label: str = "", *, reports_startup: bool = True
    ) -> None:
        self._label = label
        self._spec = spec
        # whether the program is the user's own command, which keeps its own checkpoints
        self._is_command = spec.external is not None
        self._folder = folder
        self._resources = spec.resources
        self._waiting_since: dict[str, float] = {}
        self._reported_waits: set[str] = set()  # trials whose present wait is printed
        # Messages still to print for the first trial, whose start takes the longest. There are none
        # for a command, because loptune does not know what it loads.
        self._startup_messages: list[StartupMessage] = []
        if reports_startup and not self._is_command:
            self._startup_messages = list(STARTUP_MESSAGES)
        # file timestamps may be rounded down
        self._began = time.time() - 1.0
        self._next_check = time.monotonic()
        self._steps: dict[str, int] = {}  # trial -> its latest evaluation
        self._started: dict[str, float] = {}  # running trial -> when it started
        self._missed_guards: set[str] = set()  # guards that a warning has reported
        # whether no trial has logged a metric yet, and no warning of this was printed
        self._may_be_silent = self._is_command

    def started(self, trial: str, resolved: Mapping[str, Any], point: Mapping[str, Any]) -> None:
        """Print that a trial has started, and its setting."""
        self._started[trial] = time.monotonic()
        self._print(trial, f"started    {setting_text(self._spec, resolved, point)}")

    def evaluated(self, trial: str, report: TrialReport) -> None:
        """Print a trial's evaluation."""
        self._startup_messages.clear()
        self._may_be_silent = False
        latest = self._steps.get(trial, 0)
        self._steps[trial] = report.step
        if self._is_command and report.step < latest:
            self._print(
                trial,
                f"restarted  at step {report.step}: the program loaded no checkpoint, so its "
                f"earlier evaluations up to step {latest} are discarded",
            )
        shown = ""
        if _HEADLINE in report.metrics:
            shown = f"{_HEADLINE} {number(report.metrics[_HEADLINE])}"
        if report.finished and not shown:
            return  # a command exits some time after its last evaluation
        total = f"/{report.total_steps}" if report.total_steps else ""
        score = f"score {number(report.score)}"
        if report.score is None:
            score = f"no score: {report.no_score}"
        self._print(trial, f"step {report.step}{total}  {score}  {shown}")

    def retried(self, trial: str, reason: str, failures: int | None, most: int) -> None:
        """Print that a trial starts again after a failure."""
        count = "not counted" if failures is None else f"{failures} of {most}"
        self._print(trial, f"retry {count}: {reason}")

    def failed(self, trial: str, reason: str) -> None:
        """Print that a trial failed."""
        self._print(trial, f"failed     {reason}")

    def ended(self, trial: str, report: TrialReport) -> None:
        """Print that a trial has ended, and how."""
        score = number(report.score)
        if report.stopped:
            text = f"stopped    at step {report.step}; `sweep resume` continues from there"
            if self._is_command:
                text = (
                    f"stopped    at step {report.step}; `sweep resume` starts the program again, "
                    "which continues only if it loads its own checkpoint"
                )
        elif report.reason:
            text = f"failed     {report.reason}"
        elif report.finished:
            text = f"finished   score {score}"
        else:
            text = f"stopped early by the scheduler at step {report.step}, score {score}"
        self._print(trial, text)
        if report.finished and not report.reason:
            self._report_missed_guards(trial)

    def _report_missed_guards(self, trial: str) -> None:
        """Print the guards that a trial has not logged, each once."""
        if not set(self._spec.objective.guarded) - self._missed_guards:
            return
        records = read_records(RunFolder(self._folder.trial(trial)).metrics)
        for metric, hint in unlogged_guards(self._spec, records).items():
            if metric not in self._missed_guards:
                self._missed_guards.add(metric)
                self._print(trial, f"{missed_guard(metric, hint)} To stop: {self._stop_command}")

    def polled(self, running: Sequence[str], pending: Sequence[str]) -> None:
        """Print the start-up progress of the first trial, the trials that have waited long for
        resources, and, once, the output of a command that has logged no metric.
        """
        self._report_waiting(pending)
        if self._may_be_silent:
            self._report_silent(running)
        first = next(iter([*running, *pending]), None)
        now = time.monotonic()
        if first and self._startup_messages and now > self._next_check:
            self._next_check = now + _CHECK_INTERVAL_S
            self._report_startup(first)

    def _report_startup(self, trial: str) -> None:
        while self._startup_messages:
            startup = self._startup_messages[0]
            path = self._folder.trial(trial) / startup.file
            is_new = path.exists() and path.stat().st_mtime >= self._began
            if not is_new or startup.content not in path.read_text(errors="replace"):
                return
            self._print(trial, startup.message)
            del self._startup_messages[0]

    def _print(self, trial: str, text: str) -> None:
        if progress_is_shown():
            say(f"{self._label}{trial}  {text}")

    @property
    def _stop_command(self) -> str:
        return command_line("sweep", "stop", self._folder.name, runs_dir=self._folder.runs_dir)

    def _report_silent(self, running: Sequence[str]) -> None:
        """Print the last lines of a command that has run for minutes without a metric line."""
        for trial in running:
            if trial not in self._started:
                continue
            seconds = time.monotonic() - self._started[trial]
            if seconds < _SILENT_S:
                continue
            self._may_be_silent = False
            folder = RunFolder(self._folder.trial(trial))
            if folder.metrics.exists():
                return
            metric = self._spec.objective.metrics[0]
            lines = _last_lines(folder.stdout)
            printed = "It has printed nothing on standard output."
            if lines:
                printed = "Its last lines are:\n" + "\n".join(f"    {line}" for line in lines)
            self._print(
                trial,
                f"has logged no metric in {seconds / 60:.0f} minutes. {printed}\n"
                f'  A score is read from lines like {PREFIX} {{"step": 20, "{metric}": 0.61}}. '
                "If the program should have printed such a line by now, stop the sweep: "
                f"{self._stop_command}",
            )
            return

    def _report_waiting(self, pending: Sequence[str]) -> None:
        """Print each trial that has waited long, once per wait."""
        now = time.monotonic()
        self._waiting_since = {trial: self._waiting_since.get(trial, now) for trial in pending}
        self._reported_waits.intersection_update(pending)
        for trial, start in self._waiting_since.items():
            if now - start > _WAITING_S and trial not in self._reported_waits:
                self._reported_waits.add(trial)
                self._print(trial, with_limits(f"waits for {_waits_for(self._resources)}"))


def _last_lines(path: Path) -> list[str]:
    """Return the last lines of a command's output."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _SILENT_BYTES))
        text = file.read().decode("utf-8", "replace")
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n")]
    last = [line for line in lines if line][-_SILENT_LINES:]
    return [shortened(printable(line), _MAX_LINE) for line in last]


def _waits_for(resources: ResourcesSpec) -> str:
    """Return what a trial waits for: resources, or its process if the resources are free."""
    needed = {"GPU": resources.gpus_per_trial, "CPU": float(resources.cpus_per_trial)}
    free = ray.available_resources()
    if all(free.get(kind, 0) >= wanted for kind, wanted in needed.items()):
        return "its process to start"
    present = ray.cluster_resources()
    texts = []
    for kind, wanted in needed.items():
        if wanted:
            available = f"{free.get(kind, 0):g} of {present.get(kind, 0):g} free"
            texts.append(f"{counted(wanted, kind)} ({available})")
    return joined(texts)
