"""The counters and rule states that a checkpoint stores in addition to weights, optimizer and
random states.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

STATE_FILE = "training_state.json"


@dataclass(frozen=True)
class RunState:
    """Counters and rule states of a run after a training step, as JSON values."""

    step: int
    evaluations: list[tuple[int, float]]  # training step, accuracy
    zero_variance_steps: int  # steps in which every group had zero reward variance
    sampler: dict[str, int]  # `ProblemSampler.state_dict`
    # kind of rule ("advantage", "loss") -> its state; empty in checkpoints of rules without a state
    rule_states: dict[str, dict[str, float]] = field(default_factory=dict)

    def write(self, checkpoint: Path) -> None:
        """Write the state into a checkpoint folder."""
        (checkpoint / STATE_FILE).write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, checkpoint: Path) -> "RunState":
        """Read the state from a checkpoint folder."""
        values = json.loads((checkpoint / STATE_FILE).read_text())
        evaluations = [(step, accuracy) for step, accuracy in values.pop("evaluations")]
        return cls(evaluations=evaluations, **values)
