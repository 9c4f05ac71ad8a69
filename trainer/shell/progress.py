"""The display of ``trainer run``: a line per phase, step and evaluation, a bar in a terminal."""

import sys
import time
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from trainer.progress import ProgressReport
from trainer.shell.table import PLAIN_WIDTH

_REPORT_EVERY_S = 30.0  # in a file, of a phase that takes long
_SILENT_STEPS = 3  # without a difference between completions, until a warning

_STEP_PARTS = (
    ("rollout/reward", "reward {:.3f}"),
    ("rollout/accuracy", "acc {:.3f}"),
    ("policy/kl", "kl {:.2g}"),
    ("policy/entropy", "entropy {:.2f}"),
    ("rollout/completion_length", "len {:.0f}"),
    ("optim/grad_norm", "grad {:.2g}"),
    ("time/tokens_per_s", "{:.0f} tok/s"),
    ("time/step", "{:.3g} s"),
)
_EVALUATION_PARTS = (
    ("eval/accuracy", "accuracy {:.3f}"),
    ("eval/reward", "reward {:.3f}"),
    ("eval/completion_length", "length {:.0f}"),
    ("eval/truncated", "truncated {:.1%}"),
    ("time/evaluation", "{:.1f} s"),
)
_BY_DIFFICULTY = "eval/accuracy/"
_SILENT = "rollout/silent_groups"
_CUT = "rollout/importance_cut"
_MOST_CUT = 0.5  # fraction of the tokens


def learning_warning(step: int, metrics: Mapping[str, float]) -> str | None:
    """Return the warning of a step that learned little or nothing, although its rewards differed."""
    cut = metrics.get(_CUT, 0.0)
    if cut > _MOST_CUT:
        return (
            f"warning: the engine correction cut {cut:.0%} of the tokens of step {step}\n"
            "where:   algorithm.engine_correction\n"
            "next:    raise its cap or lower its floor, lower optim.lr, or look why rollout/engine_ratio is far from 1"
        )
    if metrics.get("optim/updates") == 0 and metrics.get(_SILENT, 1.0) < 1:
        return (
            f"warning: step {step} had no gradient, and the weights were left as they are\n"
            "where:   algorithm.engine_correction, algorithm.mask_truncated, rollout.max_new_tokens\n"
            "next:    look at optim/updates_skipped, rollout/truncated and rollout/importance_cut"
        )
    return None


def silent_warning(steps: str) -> str:
    """The warning of a run whose rewards tell no completion from another."""
    return (
        f"warning: in {steps} all completions of every prompt had the same reward: nothing was learned\n"
        "where:   reward.functions, rollout.temperature\n"
        "next:    look at one with --dry-run; take easier or harder problems, or raise the temperature"
    )


def step_line(step: int, total_steps: int, metrics: Mapping[str, float]) -> str:
    """One training step as a line; metrics that are missing are left out."""
    return f"step {step:>{len(str(total_steps))}}/{total_steps}  {_join(_STEP_PARTS, metrics)}"


def evaluation_line(step: int, metrics: Mapping[str, float]) -> str:
    """One evaluation, with the accuracy of each difficulty or further set, on a line of its own if it is long."""
    parts = [
        f"{name.removeprefix(_BY_DIFFICULTY)} {value:.3f}"
        for name, value in sorted(metrics.items())
        if name.startswith(_BY_DIFFICULTY)
    ]
    line = f"eval at step {step}  {_join(_EVALUATION_PARTS, metrics)}"
    families = f"[{', '.join(parts)}]" if parts else ""
    between = "  " if len(line) + 2 + len(families) <= PLAIN_WIDTH else "\n    "
    return f"{line}{between}{families}" if families else line


class Progress(ProgressReport):
    """Shows one run."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._total_steps = 0
        self._phase = _Phase("", 0, time.monotonic())
        self._warned = False  # of a step that learned little
        self._silent_steps: int | None = 0  # None: a step had differences
        self._bar: Bar | None = None
        if self._stream.isatty():
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                _Rate(""),
            )
            self._bar = Bar(*columns, console=Console(file=self._stream, highlight=False), transient=True)
            self._phase_task = self._bar.add_task("starting", total=None)
            self._bar.start()

    def phase(self, what: str, count: int = 0, announce: bool = True, unit: str = "completions") -> None:
        """Show what is done from now on, and of how many parts it consists."""
        self._phase = _Phase(what, count, time.monotonic())
        if self._bar is not None:
            self._bar.reset(self._phase_task, description=what, total=count or None)
        elif announce:
            self._write(f"{what}: {count} {unit}" if count else what)

    def note(self, line: str) -> None:
        """Show a line."""
        self._write(line)

    def completed(self, count: int) -> None:
        """So many parts more are done."""
        phase = self._phase
        phase.completed += count
        if self._bar is not None:
            self._bar.update(self._phase_task, completed=phase.completed)
        elif time.monotonic() - phase.reported >= _REPORT_EVERY_S:
            phase.reported = time.monotonic()
            self._write(phase.text())

    def begin(self, total_steps: int, step: int) -> None:
        """Show the way to the last step."""
        self._total_steps = total_steps
        if self._bar is not None:
            self._steps_task = self._bar.add_task("training", total=total_steps, completed=step)

    def resumed(self, name: str, step: int, total_steps: int) -> None:
        """Show where a run continues."""
        self._write(f"resuming {name} at step {step} of {total_steps}")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show a training step."""
        self._write(step_line(step, self._total_steps, metrics))
        if self._bar is not None:
            self._bar.update(self._steps_task, completed=step)
        warning = learning_warning(step, metrics)
        if warning is not None and not self._warned:
            self._warned = True
            self._write(warning)
        if self._silent_steps is not None and _SILENT in metrics:
            self._silent_steps = self._silent_steps + 1 if metrics[_SILENT] == 1 else None
            if self._silent_steps == _SILENT_STEPS:
                self._write(silent_warning(f"the first {_SILENT_STEPS} steps"))

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show an evaluation."""
        self._write(evaluation_line(step, metrics))

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def _write(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(Text(text))
        else:
            print(text, file=self._stream, flush=True)


class _Phase:
    """The current phase and its progress."""

    def __init__(self, what: str, total: int, started: float) -> None:
        self.what, self.total, self.completed = what, total, 0
        self.started = self.reported = started

    def text(self) -> str:
        rate = self.completed / max(1e-9, time.monotonic() - self.started)
        left = (self.total - self.completed) / rate if rate else 0.0
        return f"  {self.what}: {self.completed} of {self.total}, {rate:.1f}/s, about {left:.0f} s left"


class _Rate(TextColumn):
    """Completions or steps per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:.1f}/s" if task.speed else "")


def _join(parts: tuple[tuple[str, str], ...], metrics: Mapping[str, float]) -> str:
    return "  ".join(text.format(metrics[name]) for name, text in parts if name in metrics)
