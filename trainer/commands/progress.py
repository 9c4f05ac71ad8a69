"""What ``trainer run`` shows while it trains: a line per step and evaluation, a bar in a terminal."""

import sys
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

_STEP_PARTS = (
    ("rollout/reward", "reward {:.3f}"),
    ("rollout/accuracy", "acc {:.3f}"),
    ("policy/kl", "kl {:.2g}"),
    ("policy/entropy", "entropy {:.3f}"),
    ("policy/clip_fraction", "clip {:.2%}"),
    ("rollout/completion_length", "length {:.0f}"),
    ("optim/grad_norm", "grad {:.3g}"),
    ("time/tokens_per_s", "{:,.0f} tok/s"),
    ("time/step", "{:.1f} s"),
)
_EVALUATION_PARTS = (
    ("eval/accuracy", "accuracy {:.3f}"),
    ("eval/reward", "reward {:.3f}"),
    ("eval/completion_length", "length {:.0f}"),
    ("eval/truncated", "truncated {:.1%}"),
    ("time/evaluation", "{:.1f} s"),
)
_PHASES = ("time/rollout", "time/reward", "time/logprobs", "time/update")
_BY_DIFFICULTY = "eval/accuracy/"


def step_line(step: int, total_steps: int, metrics: Mapping[str, float]) -> str:
    """One training step as a line; metrics that are missing are left out."""
    phases = [f"{name.removeprefix('time/')} {metrics[name]:.1f}" for name in _PHASES if name in metrics]
    seconds = f" ({', '.join(phases)})" if phases else ""
    return f"step {step:>{len(str(total_steps))}}/{total_steps}  {_join(_STEP_PARTS, metrics)}{seconds}"


def evaluation_line(step: int, metrics: Mapping[str, float]) -> str:
    """One evaluation as a line, with the accuracy of each difficulty or further set."""
    parts = [
        f"{name.removeprefix(_BY_DIFFICULTY)} {value:.3f}"
        for name, value in sorted(metrics.items())
        if name.startswith(_BY_DIFFICULTY)
    ]
    families = f"  [{', '.join(parts)}]" if parts else ""
    return f"eval at step {step}  {_join(_EVALUATION_PARTS, metrics)}{families}"


class Progress:
    """Shows the steps of one run.

    Args:
        total_steps: training steps of the run.
        stream: where to write; standard output if None.
    """

    def __init__(self, total_steps: int, stream: TextIO | None = None) -> None:
        self._total = total_steps
        self._stream = stream or sys.stdout
        self._bar: Bar | None = None
        if self._stream.isatty():
            columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            console = Console(file=self._stream, highlight=False)
            self._bar = Bar(*columns, console=console, transient=True)
            self._task = self._bar.add_task("training", total=total_steps)
            self._bar.start()

    def resumed(self, name: str, step: int) -> None:
        """Show where a run continues."""
        self._write(f"resuming {name} at step {step} of {self._total}")

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show a training step."""
        self._write(step_line(step, self._total, metrics))
        if self._bar is not None:
            self._bar.update(self._task, completed=step)

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show an evaluation."""
        self._write(evaluation_line(step, metrics))

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def _write(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line, markup=False, soft_wrap=True)
        else:
            print(line, file=self._stream, flush=True)


def _join(parts: tuple[tuple[str, str], ...], metrics: Mapping[str, float]) -> str:
    return "  ".join(text.format(metrics[name]) for name, text in parts if name in metrics)
