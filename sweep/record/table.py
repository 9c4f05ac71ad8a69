"""The table of a sweep's trials, one row each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.shell.table import number, print_table


@dataclass
class TrialRow:
    """One trial in the table."""

    trial: str
    configuration: int
    seed: int
    state: str = "WAITING"  # WAITING, RUNNING, COMPLETE, PRUNED, FAIL
    step: int = 0
    total_steps: int | None = None
    score: float | None = None
    reason: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether the trial has ended: complete, pruned or failed."""
        return self.state in ("COMPLETE", "PRUNED", "FAIL")


def print_trials(rows: Sequence[TrialRow]) -> None:
    """Print the trials of a sweep."""
    print_table(
        ["trial", "state", "step", "score", "parameters", "reason"],
        [
            [
                row.trial,
                row.state,
                step_text(row),
                number(row.score),
                parameter_text(row.parameters),
                row.reason,
            ]
            for row in rows
        ],
    )


def parameter_text(parameters: Mapping[str, Any]) -> str:
    """Return parameters on one line without section names: ``name=grpo ar_alpha=0.3``."""
    return " ".join(
        f"{key.rsplit('.', 1)[-1]}={number(value)}" for key, value in parameters.items()
    )


def step_text(row: TrialRow) -> str:
    """Write ``20/60``, or nothing before the first step."""
    if not row.step and row.state == "WAITING":
        return ""
    return f"{row.step}/{row.total_steps}" if row.total_steps else str(row.step)


def duration(seconds: float) -> str:
    """Write ``2h 05m``, ``3m 20s`` or ``12s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"
