"""The entropy bonus: a constant coefficient, or one that holds the policy's entropy at a target."""

from dataclasses import dataclass

import torch

from trainer.algorithm.advantages import SumOverRanks
from trainer.config.algorithm import AlgorithmConfig
from trainer.types import TrainBatch

STEP = 0.005  # of an adaptive coefficient in one training step, within 0 to 1, as in Skywork-OR1 and TRL


@dataclass
class EntropyBonus:
    """The coefficient c of ``loss = policy loss - c H`` from step to step."""

    coefficient: float
    target: float | None

    @classmethod
    def of(cls, config: AlgorithmConfig) -> "EntropyBonus":
        """The bonus of a run before its first step."""
        return cls(config.entropy_coef, config.entropy_target)

    def next(self, batch: TrainBatch, sum_over_ranks: SumOverRanks) -> float:
        """The coefficient of a training step; an adaptive one then moves [arXiv:2505.22312].

        With H the mean entropy of the policy before its update, over the completion tokens of all ranks: the
        coefficient counts where ``H <= target``, else 0; it rises by `STEP` where ``H <= target``, else it falls.
        """
        if self.target is None:
            return self.coefficient
        assert batch.entropies is not None
        mask = batch.completion_mask
        total, tokens = sum_over_ranks(torch.stack([(batch.entropies * mask).sum(), mask.sum()]).double()).tolist()
        below, applied = total <= self.target * tokens, self.coefficient
        self.coefficient = min(1.0, max(0.0, self.coefficient + (STEP if below else -STEP)))
        return applied if below else 0.0
