"""Rollouts: sample completions for problems and score them."""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from transformers import PreTrainedTokenizerBase

from rewards.sandbox import RewardPool, ScoredText, ScoringFailedError
from trainer.config.schema import RolloutConfig, TrainConfig
from trainer.errors import RewardError
from trainer.metrics.stopwatch import Stopwatch
from trainer.parallel.ranks import Parallel
from trainer.problems.load import encode_prompt
from trainer.rollouts.engine import CompletionSource, Sample, SamplingParams
from trainer.types import Completion, Problem, Rollout, RolloutGroup


@dataclass(frozen=True)
class GroupRequest:
    """A problem to be answered once per seed."""

    group_id: int
    problem: Problem
    seeds: Sequence[int]  # [G]


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on all parts and on nothing else."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def group_requests(
    config: TrainConfig, step: int, problems: Sequence[Problem], parallel: Parallel, first: int = 0
) -> list[GroupRequest]:
    """The rank's share of a step's problems, numbered from ``first``; every completion has a seed of its own."""
    seeds = range(config.rollout.group_size)
    return [
        GroupRequest(i, problem, [derive_seed(config.seed, step, i, g) for g in seeds])
        for i, problem in enumerate(problems, start=first)
        if (i - first) % parallel.world_size == parallel.rank
    ]


def stop_tokens(config: RolloutConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokenizer's EOS and the configured stop tokens, each once."""
    return tuple(dict.fromkeys([tokenizer.eos_token_id, *config.stop_token_ids]))


def sampling_params(config: RolloutConfig, tokenizer: PreTrainedTokenizerBase) -> SamplingParams:
    """How training completions are sampled."""
    return SamplingParams(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        max_new_tokens=config.max_new_tokens,
        stop_token_ids=stop_tokens(config, tokenizer),
    )


def sample_completions(
    engine: CompletionSource,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[Sequence[int]],
    params: SamplingParams,
) -> list[list[Completion]]:
    """One list of completions per prompt, one completion per seed."""
    sampled = engine.generate(prompts, seeds, params)
    return [[_completion(sample, tokenizer, params) for sample in group] for group in sampled]


def _completion(sample: Sample, tokenizer: PreTrainedTokenizerBase, params: SamplingParams) -> Completion:
    token_ids = sample.token_ids
    ended = bool(token_ids) and token_ids[-1] in params.stop_token_ids
    text = tokenizer.decode(
        token_ids[:-1] if ended else token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return Completion(token_ids, sample.logprobs, text, sample.finish_reason)


def score_completions(
    requests: Sequence[GroupRequest],
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[Completion]],
    rewards: RewardPool,
) -> list[RolloutGroup]:
    """One group of rollouts per request, from its prompt and its completions.

    Raises:
        RewardError: scoring fails too often for the rewards to mean anything.
    """
    flat = [
        (request, tuple(prompt), completion)
        for request, prompt, group in zip(requests, prompts, completions, strict=True)
        for completion in group
    ]
    try:
        scored = rewards.score(
            [request.problem.prefill + completion.text for request, _, completion in flat],
            [request.problem.answer for request, _, _ in flat],
        )
    except ScoringFailedError as error:
        raise scoring_error(str(error)) from error
    rollouts = iter([_rollout(*parts, result) for parts, result in zip(flat, scored, strict=True)])
    return [
        RolloutGroup(request.group_id, list(islice(rollouts, len(group))))
        for request, group in zip(requests, completions, strict=True)
    ]


def scoring_error(what: str) -> RewardError:
    """The error of a run whose rewards are mostly failures of the scoring."""
    return RewardError(
        what, "reward.functions", "repair the reward function, or raise reward.timeout_s or reward.memory_mb"
    )


def _rollout(
    request: GroupRequest, prompt: tuple[int, ...], completion: Completion, scored: ScoredText
) -> Rollout:
    score = scored.score
    return Rollout(
        group_id=request.group_id,
        problem=request.problem,
        prompt_ids=prompt,
        completion=completion,
        reward=score.reward,
        reward_breakdown=score.breakdown,
        correct=score.correct,
        parsed=score.parsed,
        scoring=scored.status,
        scoring_message=scored.message,
    )


def collect_rollouts(
    engine: CompletionSource,
    tokenizer: PreTrainedTokenizerBase,
    requests: Sequence[GroupRequest],
    params: SamplingParams,
    rewards: RewardPool,
    stopwatch: Stopwatch,
    meanwhile: Callable[[list[RolloutGroup]], None] | None = None,
) -> list[RolloutGroup]:
    """Sample and score one group per request; the stopwatch tells sampling from waiting for scores.

    Args:
        engine: samples.
        tokenizer: of the policy.
        requests: one per group.
        params: of sampling.
        rewards: score, in processes of their own.
        stopwatch: takes the time of the phases.
        meanwhile: what this process does while they score, given the groups with rewards of 0.

    Raises:
        RewardError: scoring fails too often for the rewards to mean anything.
    """
    prompts = [encode_prompt(tokenizer, request.problem) for request in requests]
    with stopwatch("rollout"):
        completions = sample_completions(engine, tokenizer, prompts, [r.seeds for r in requests], params)
    if meanwhile is None:
        with stopwatch("reward"):
            return score_completions(requests, prompts, completions, rewards)
    with ThreadPoolExecutor(1) as executor:
        scored = executor.submit(score_completions, requests, prompts, completions, rewards)
        meanwhile(_without_rewards(requests, prompts, completions))
        with stopwatch("reward"):
            return scored.result()


def _without_rewards(
    requests: Sequence[GroupRequest],
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[Completion]],
) -> list[RolloutGroup]:
    return [
        RolloutGroup(
            request.group_id,
            [
                Rollout(request.group_id, request.problem, tuple(prompt), completion, 0.0, {}, False)
                for completion in group
            ],
        )
        for request, prompt, group in zip(requests, prompts, completions, strict=True)
    ]
