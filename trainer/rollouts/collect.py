"""Sampling and scoring of the rollout groups of a training step."""

import hashlib
import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice

from torch import nn
from transformers import PreTrainedTokenizerBase

from loptune.progress import ProgressReport
from rewards.sandbox import RewardPool, ScoredText, ScoringFailedError
from trainer.config.schema import TrainConfig
from trainer.metrics.step import Stopwatch
from trainer.parallel.ranks import Parallel
from trainer.policy.vocabulary import embedding_rows, end_token_ids, unknown_token_ids
from trainer.problems.load import encode_prompt
from trainer.problems.sampler import ProblemSampler
from trainer.rollouts.balance import balance_groups
from trainer.rollouts.dynamic_sampling import sample_until_varied
from trainer.rollouts.engine import IntegerRows, RolloutEngine, Sampler, SamplingParams
from trainer.rollouts.overlong import apply_overlong_penalty
from trainer.rollouts.scoring_errors import scoring_error
from trainer.rollouts.stop_strings import StopStrings, completion_text
from trainer.types import Completion, Problem, Rollout, RolloutGroup, SampledGroups, all_rollouts

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GroupRequest:
    """A problem to sample once per seed."""

    group_id: int
    problem: Problem
    seeds: Sequence[int]  # [G]


def derive_seed(*parts: int | str) -> int:
    """Hash the parts to a 63-bit seed."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def group_requests(
    config: TrainConfig, step: int, problems: Sequence[Problem], parallel: Parallel, first: int = 0
) -> list[GroupRequest]:
    """Return requests for this rank's share of a step's problems, numbered from ``first``, with one
    seed per completion.
    """
    requests = []
    for place in range(parallel.rank, len(problems), parallel.world_size):
        number = first + place
        completions = range(config.rollout.group_size)
        seeds = [derive_seed(config.seed, step, number, completion) for completion in completions]
        requests.append(GroupRequest(number, problems[place], seeds))
    return requests


def stop_tokens(config: TrainConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the ids that end a completion, without duplicates: the tokenizer's EOS, the ids of the
    model's generation configuration, and ``rollout.stop_token_ids``.
    """
    ends = [tokenizer.eos_token_id, *end_token_ids(config.model), *config.rollout.stop_token_ids]
    return tuple(dict.fromkeys(ends))


def sampling_params(config: TrainConfig, tokenizer: PreTrainedTokenizerBase) -> SamplingParams:
    """Return the sampling parameters for training.

    Raises:
        MissingError: the model's configuration cannot be read.
    """
    rollout = config.rollout
    ends = stop_tokens(config, tokenizer)
    stop = None
    if rollout.stop:
        stop = StopStrings(tuple(rollout.stop), rollout.stop_in_text, tokenizer, ends)
    return SamplingParams(
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        max_new_tokens=rollout.max_new_tokens,
        stop_token_ids=ends,
        stop=stop,
        excluded_token_ids=unknown_token_ids(tokenizer, embedding_rows(config.model)),
    )


def sample_completions(
    engine: Sampler,
    tokenizer: PreTrainedTokenizerBase,
    prompts: IntegerRows,
    seeds: IntegerRows,
    params: SamplingParams,
) -> list[list[Completion]]:
    """Sample one completion per seed for each prompt."""
    groups = []
    for prompt, sampled in zip(prompts, engine.generate(prompts, seeds, params), strict=True):
        group = []
        for completion in sampled:
            if params.stop is not None:
                group.append(params.stop.cut(completion, prompt))
                continue
            text = completion_text(
                tokenizer, completion.token_ids, params.stop_token_ids, prompt_ids=prompt
            )
            group.append(replace(completion, text=text))
        groups.append(group)
    return groups


def sample_groups(
    engine: Sampler,
    tokenizer: PreTrainedTokenizerBase,
    requests: Sequence[GroupRequest],
    params: SamplingParams,
) -> list[RolloutGroup]:
    """Sample one group per request. Rewards are NaN until scored."""
    prompts = [tuple(encode_prompt(tokenizer, request.problem)) for request in requests]
    completions = sample_completions(
        engine, tokenizer, prompts, [request.seeds for request in requests], params
    )
    groups = []
    for request, prompt, sampled in zip(requests, prompts, completions, strict=True):
        number = request.group_id
        rollouts = [Rollout(number, request.problem, prompt, each) for each in sampled]
        groups.append(RolloutGroup(number, rollouts))
    return groups


def score_groups(groups: Sequence[RolloutGroup], rewards: RewardPool) -> list[RolloutGroup]:
    """Score the groups' completions.

    Raises:
        RewardError: scoring failed for too many completions.
    """
    rollouts = all_rollouts(groups)
    try:
        scored = rewards.score(
            [rollout.problem.prefill + rollout.completion.text for rollout in rollouts],
            [rollout.problem.answer for rollout in rollouts],
            [rollout.problem.columns for rollout in rollouts],
        )
    except ScoringFailedError as error:
        raise scoring_error(str(error), cause=error.cause, withheld=error.withheld) from error
    _report_failures(rewards, scored)
    with_rewards = map(_scored, rollouts, scored)
    scored_groups = []
    for group in groups:
        of_group = list(islice(with_rewards, len(group.rollouts)))
        scored_groups.append(replace(group, rollouts=of_group))
    return scored_groups


def _report_failures(rewards: RewardPool, scored: Sequence[ScoredText]) -> None:
    """Warn about the first failures of the pool, with their number and the first error."""
    failed = [result for result in scored if result.status != "ok"]
    if not failed or rewards.failure_reported:
        return
    rewards.failure_reported = True
    _logger.warning(
        "warning: scoring failed for %d of %d completions (in training, these are left out of the "
        "update); first error: %s (later failures appear only in reward/errors, reward/timeouts "
        "and eval/scoring_failures)",
        len(failed),
        len(scored),
        failed[0].message,
    )


def _scored(rollout: Rollout, scored: ScoredText) -> Rollout:
    score = scored.score
    return replace(
        rollout,
        reward=score.reward,
        reward_breakdown=score.breakdown,
        correct=score.correct,
        parsed=score.parsed,
        scoring=scored.status,
        scoring_error=scored.message,
    )


@dataclass(frozen=True)
class StepGroups:
    """One rank's groups of a step. Scoring may still be running."""

    groups: Sequence[RolloutGroup]  # rewards are NaN while scoring is running
    scores: Future[SampledGroups]  # the scored groups, including dropped ones


def _finished(scored: SampledGroups) -> Future[SampledGroups]:
    scores: Future[SampledGroups] = Future()
    scores.set_result(scored)
    return scores


@dataclass
class RolloutSampler:
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
            RewardError: scoring failed for too many completions; raised here, or by
                ``scores.result()``.
            EngineError: the engine failed.
        """
        rollout = self.config.rollout
        if rollout.dynamic_sampling:  # needs the rewards before it can continue
            sampled = sample_until_varied(
                lambda first, count: self._sample_and_score(step, first, count, stopwatch),
                rollout.prompts_per_step,
                rollout.max_sampling_rounds,
                self.parallel,
            )
            groups = self._balanced(sampled.groups)
            scores = _finished(replace(sampled, groups=groups))
        else:
            groups = self._balanced(self._sample(step, 0, rollout.prompts_per_step, stopwatch))
            scores = self._scoring.submit(self._score_all, groups)
        self.engine.sleep()
        return StepGroups(groups, scores)

    def sync_weights(self, model: nn.Module, stopwatch: Stopwatch) -> None:
        """Sync the weights to the engine and wake it.

        Raises:
            EngineError: the engine rejected the weights, or its log-probabilities differ from the
                policy's.
        """
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

    def _balanced(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        return balance_groups(groups, self.config.optim.update_batch_size, self.parallel)

    def _score(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        scored = score_groups(groups, self.rewards)
        reward = self.config.reward
        if reward.overlong_buffer == 0:
            return scored
        return apply_overlong_penalty(scored, self._params.max_new_tokens, reward)

    def _score_all(self, groups: Sequence[RolloutGroup]) -> SampledGroups:
        scored = self._score(groups)
        return SampledGroups(groups=scored, sampled=scored, dropped=0)

    def _sample_and_score(
        self, step: int, first: int, count: int, stopwatch: Stopwatch
    ) -> list[RolloutGroup]:
        groups = self._sample(step, first, count, stopwatch)
        with stopwatch("reward"):
            return self._score(groups)
