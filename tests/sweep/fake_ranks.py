"""The fake trainer as one of several ranks: a real process group, a state that every rank
contributes to.

Faults are those of ``fake_trainer``; ``rank`` names the one that meets them. Rank 0 alone writes
``fake.jsonl`` and ``metrics.jsonl``, the others keep their own record.
"""

import json
import os
from pathlib import Path
from typing import ClassVar

import ray

from sweep.programs.base import Assignment
from tests.sweep.fake_trainer import FakeTrainer, LocalTracker


class FakeRank(FakeTrainer):
    def __init__(self, assignment: Assignment) -> None:
        import torch

        from trainer.parallel.ranks import join_ranks

        self.rank = int(os.environ["RANK"])
        self.value = 1.0 + assignment.config.algorithm.ar_alpha
        join_ranks(60.0, torch.device("cpu"))
        super().__init__(assignment)
        if self.faults.get("rank", self.rank) != self.rank:
            self.faults = {}

    def save_checkpoint(self) -> Path:
        folder = self.run_dir / "checkpoints" / f"step-{self.step}"
        if self.rank == 0:
            folder = super().save_checkpoint()
        self._sum(0.0)
        return folder

    def resume(self) -> int:
        step = super().resume()
        if step:
            state = self.run_dir / "checkpoints" / f"step-{step}" / "state.json"
            self.value = json.loads(state.read_text())["value"]
        self._sum(0.0)
        return step

    def state(self) -> dict[str, float]:
        return {"step": self.step, "value": self.value}

    def _fault(self) -> None:
        super()._fault()
        # Depends on every rank and on the order of all steps.
        self.value = 0.9 * self.value + self._sum((self.rank + 1) * (self.step + 1) ** 0.5)

    def _sum(self, number: float) -> float:
        import torch

        total = torch.tensor(number, dtype=torch.float64)
        torch.distributed.all_reduce(total)
        return float(total)

    def _record(self, event: str, **more: str) -> None:
        self.log = self.run_dir / ("fake.jsonl" if self.rank == 0 else f"fake-{self.rank}.jsonl")
        super()._record(event, **more)

    def place(self) -> dict[str, str]:
        return {"node": ray.get_runtime_context().get_node_id(), "port": os.environ["MASTER_PORT"]}


class SilentTracker(LocalTracker):
    """What ranks other than 0 have for a tracker."""

    history: ClassVar[dict[int, float]] = {}

    def __init__(self) -> None:
        pass

    def log(self, metrics, step) -> None:
        pass

    def rewind(self, step: int) -> None:
        pass

    def close(self, status: str) -> None:
        pass
