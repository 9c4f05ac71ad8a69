"""The table of a sweep's trials, one row each."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.errors import shortened
from trainer.shell.table import number, print_table

_MAX_VALUE = 60  # characters; a searched system prompt may have thousands


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
    """Return parameters on one line: ``advantage=grpo ar_alpha=0.3``. Keys that end alike keep
    their sections: ``actor.optim.lr=1e-06 critic.optim.lr=1e-05``.
    """
    names = unambiguous_names(parameters)
    return " ".join(f"{names[key]}={value_text(value)}" for key, value in parameters.items())


def unambiguous_names(keys: Iterable[str]) -> dict[str, str]:
    """Map each dotted key to its last part, or to the whole key if another key ends alike."""
    last_parts = {key: key.rsplit(".", 1)[-1] for key in keys}
    count = Counter(last_parts.values())
    return {key: last if count[last] == 1 else key for key, last in last_parts.items()}


def value_text(value: Any) -> str:
    """Return a parameter's value on one line of at most ``_MAX_VALUE`` characters."""
    return shortened(" ".join(number(value).split()), _MAX_VALUE)


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
