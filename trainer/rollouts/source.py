"""Rollout collection for training steps."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedTokenizerBase

from rewards.sandbox import RewardPool
from trainer.config.schema import TrainConfig
from trainer.metrics.stopwatch import Stopwatch
from trainer.parallel.ranks import Parallel
from trainer.problems.sampler import ProblemSampler
from trainer.progress import ProgressReport
from trainer.rollouts.collect import group_requests, sample_groups, sampling_params, score_groups
from trainer.rollouts.dynamic_sampling import sample_with_spread
from trainer.rollouts.engine import RolloutEngine
from trainer.rollouts.overlong import punish_overlong
from trainer.types import RolloutGroup, SampledGroups


@dataclass(frozen=True)
class StepGroups:
    """One rank's groups of a step. Scoring may still be running."""

    groups: Sequence[RolloutGroup]  # rewards are NaN while scoring is running
    scores: Future[SampledGroups]  # the scored groups, including dropped ones


@dataclass
class RolloutSource:
    """Source of the sampled and scored groups of each training step.

    Handles problem order, seeds, dynamic sampling and the overlong penalty.
    """

    config: TrainConfig
    sampler: ProblemSampler
    tokenizer: PreTrainedTokenizerBase
    engine: RolloutEngine
    rewards: RewardPool
    parallel: Parallel
    progress: ProgressReport

    def __post_init__(self) -> None:
        self._params = sampling_params(self.config, self.tokenizer)
        # one thread that waits for the reward pool
        self._scoring = ThreadPoolExecutor(1, "scoring")

    def next_groups(self, step: int, stopwatch: Stopwatch) -> StepGroups:
        """Sample the groups of the next step (0-based ``step``). The engine then sleeps until
        `sync_weights`.

        Raises:
            RewardError: raised here or by ``scores``: scoring failed for too many completions.
        """
        rollout = self.config.rollout
        scores: Future[SampledGroups] = Future()
        if rollout.dynamic_sampling:  # needs the rewards before it can continue
            sampled = sample_with_spread(
                lambda first, count: self._sample_and_score(step, first, count, stopwatch),
                rollout.prompts_per_step,
                rollout.max_sampling_rounds,
                self.parallel,
            )
            groups = sampled.groups
            scores.set_result(sampled)
        else:
            groups = self._sample(step, 0, rollout.prompts_per_step, stopwatch)
            scores = self._scoring.submit(self._score_all, groups)
        self.engine.sleep()
        return StepGroups(groups, scores)

    def sync_weights(self, model: nn.Module, stopwatch: Stopwatch) -> None:
        """Sync the weights to the engine and wake it."""
        with stopwatch("sync"):
            self.engine.sync_weights(model)
            self.engine.wake()

    def close(self) -> None:
        """Shut down the scoring thread and the engine."""
        self._scoring.shutdown()
        self.engine.close()

    def _sample(
        self, step: int, first: int, count: int, stopwatch: Stopwatch
    ) -> list[RolloutGroup]:
        requests = group_requests(self.config, step, self.sampler.next(count), self.parallel, first)
        self.progress.phase(
            "sampling", len(requests) * self.config.rollout.group_size, announce=False
        )
        with stopwatch("rollout"):
            return sample_groups(self.engine, self.tokenizer, requests, self._params)

    def _score(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        scored = score_groups(groups, self.rewards)
        return punish_overlong(scored, self._params.max_new_tokens, self.config.reward)

    def _score_all(self, groups: Sequence[RolloutGroup]) -> SampledGroups:
        scored = self._score(groups)
        return SampledGroups(groups=scored, sampled=scored, dropped=0)

    def _sample_and_score(
        self, step: int, first: int, count: int, stopwatch: Stopwatch
    ) -> list[RolloutGroup]:
        groups = self._sample(step, first, count, stopwatch)
        with stopwatch("reward"):
            return self._score(groups)
