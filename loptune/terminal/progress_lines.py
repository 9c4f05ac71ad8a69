"""Console output of ``trainer run``: one line per phase, step and evaluation, and a progress bar in
a terminal.
"""

import logging
import sys
import time
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.text import Text

from loptune.errors import warning_text
from loptune.progress import MetricValues, ProgressReport
from loptune.terminal.interrupt import shutdown_warning
from loptune.terminal.lasting_output import is_terminal
from loptune.terminal.logs import progress_is_shown

_logger = logging.getLogger(__name__)

_REPORT_EVERY_S = 30.0  # interval of progress lines for long phases outside of a terminal
_ZERO_VARIANCE_STEPS = 3  # warn if each of the first N steps has only zero-variance groups

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
_ZERO_VARIANCE = "rollout/zero_variance_groups"
_CUT = "rollout/importance_cut"
_MOST_CUT = 0.5  # warn above this fraction of clipped or masked tokens


def learning_warning(step: int, metrics: MetricValues) -> str | None:
    """Return a warning if ``rollout_correction`` clipped or masked most tokens of a step, or if the
    step had no gradient although rewards differed; otherwise None.
    """
    cut = metrics.get(_CUT, 0.0)
    if cut > _MOST_CUT:
        return warning_text(
            f"rollout_correction clipped or masked {cut:.0%} of the tokens in step {step}",
            "algorithm.rollout_correction",
            "raise cap or lower floor, lower optim.lr, or check why rollout/engine_ratio is far "
            "from 1",
        )
    if metrics.get("optim/updates") == 0 and metrics.get(_ZERO_VARIANCE, 1.0) < 1:
        return warning_text(
            f"step {step} had no gradient, so the weights did not change",
            "algorithm.rollout_correction, algorithm.mask_truncated, rollout.max_new_tokens",
            "check optim/updates_skipped, rollout/truncated and rollout/importance_cut",
        )
    return None


def zero_variance_warning(steps: str) -> str:
    """Return the warning that all groups of some steps had zero reward variance. ``steps`` names
    them: ``the first 3 steps``.
    """
    return warning_text(
        f"in {steps}, all completions of every prompt had the same reward, so nothing was learned",
        "reward.functions, rollout.temperature",
        "inspect a completion with --dry-run; use easier or harder problems, or raise the "
        "temperature",
    )


def step_line(step: int, total_steps: int, metrics: MetricValues) -> str:
    """Format a training step as one line; missing metrics are omitted."""
    return f"step {step:>{len(str(total_steps))}}/{total_steps}  {_join(_STEP_PARTS, metrics)}"


def evaluation_line(step: int, metrics: MetricValues) -> str:
    """Format an evaluation with the accuracy per difficulty and per additional set."""
    parts = [
        f"{name.removeprefix(_BY_DIFFICULTY)} {value:.3f}"
        for name, value in sorted(metrics.items())
        if name.startswith(_BY_DIFFICULTY)
    ]
    families = f"  [{', '.join(parts)}]" if parts else ""
    return f"eval at step {step}  {_join(_EVALUATION_PARTS, metrics)}{families}"


class Progress(ProgressReport):
    """Console display of one run on ``stream``; on standard output by default."""

    def __init__(self, stream: TextIO | None = None) -> None:
        stream = stream or sys.stdout
        self._in_terminal = is_terminal(stream)
        self._total_steps = 0
        self._reported = 0.0  # time of the last progress line
        self._warned = False  # whether `learning_warning` was shown
        self._limit_warned = False  # whether the warning about the launcher's time limit was shown
        # number of steps so far, if all had only zero-variance groups; otherwise None
        self._zero_variance_steps: int | None = 0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._shown = progress_is_shown()
        self._console = Console(file=stream, highlight=False)
        shown = {"transient": True, "disable": not (self._in_terminal and self._shown)}
        self._bar = Bar(*columns, console=self._console, get_time=time.monotonic, **shown)
        self._phase_task = self._bar.add_task("starting", total=None)
        self._steps_task = self._bar.add_task("training", total=0, visible=False)
        self._bar.start()

    def phase(self, what: str, count: int = 0, announce: bool = True) -> None:
        """Show a new phase with ``count`` parts."""
        self._bar.reset(self._phase_task, description=what, total=count or None)
        self._reported = time.monotonic()
        if announce and not self._in_terminal:
            self._write(f"{what}: {count} completions" if count else what)

    def note(self, line: str) -> None:
        """Show a line."""
        self._write(line)

    def completed(self, count: int) -> None:
        """Advance the phase by ``count`` parts."""
        self._bar.advance(self._phase_task, count)
        if self._in_terminal or time.monotonic() - self._reported < _REPORT_EVERY_S:
            return
        self._reported = time.monotonic()
        task = self._bar.tasks[self._phase_task]
        done = task.completed
        total = task.total
        if total is None:
            self._write(f"  {task.description}: {done:.0f} done")
            return
        rate = done / max(1e-9, task.elapsed or 0)
        left = (total - done) / max(1e-9, rate)
        self._write(
            f"  {task.description}: {done:.0f} of {total:.0f}, {rate:.1f}/s, about {left:.0f} s "
            "left"
        )

    def begin(self, total_steps: int, step: int) -> None:
        """Show the progress bar over all steps, of which ``step`` are complete."""
        self._total_steps = total_steps
        self._bar.update(self._steps_task, total=total_steps, completed=step, visible=True)

    def step(self, step: int, metrics: MetricValues) -> None:
        """Show a training step."""
        self._write(step_line(step, self._total_steps, metrics))
        self._bar.update(self._steps_task, completed=step)
        slow = shutdown_warning(metrics.get("time/step", 0.0))
        if slow is not None and not self._limit_warned:
            self._limit_warned = True
            _logger.warning("%s", slow)
        warning = learning_warning(step, metrics)
        if warning is not None and not self._warned:
            self._warned = True
            _logger.warning("%s", warning)
        if self._zero_variance_steps is not None and _ZERO_VARIANCE in metrics:
            self._zero_variance_steps = (
                self._zero_variance_steps + 1 if metrics[_ZERO_VARIANCE] == 1 else None
            )
            if self._zero_variance_steps == _ZERO_VARIANCE_STEPS:
                _logger.warning(
                    "%s", zero_variance_warning(f"the first {_ZERO_VARIANCE_STEPS} steps")
                )

    def evaluation(self, step: int, metrics: MetricValues) -> None:
        """Show an evaluation."""
        self._write(evaluation_line(step, metrics))

    def close(self) -> None:
        """Remove the bar."""
        self._bar.stop()

    def _write(self, text: str) -> None:
        if self._shown:
            self._console.print(Text(text), soft_wrap=True)


def _join(parts: tuple[tuple[str, str], ...], metrics: MetricValues) -> str:
    return "  ".join(text.format(metrics[name]) for name, text in parts if name in metrics)
