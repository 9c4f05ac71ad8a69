"""Rollouts: sample completions for problems and score them."""

import hashlib
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from rewards.sandbox import RewardPool, ScoredText
from trainer.config.schema import RolloutConfig
from trainer.metrics.stopwatch import Stopwatch
from trainer.problems.load import encode_prompt
from trainer.rollouts.engine import RolloutEngine, Sample, SamplingParams
from trainer.types import Completion, Problem, Rollout, RolloutGroup


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on all parts and on nothing else."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


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
    engine: RolloutEngine,
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
    problems: Sequence[Problem],
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[Completion]],
    rewards: RewardPool,
    group_ids: Sequence[int],
) -> tuple[list[RolloutGroup], list[ScoredText]]:
    """Rewards for all completions.

    Returns:
        One group per problem, and what the scoring said of every completion in the same order.
    """
    texts = [problem.prefill + c.text for problem, group in zip(problems, completions, strict=True) for c in group]
    answers = [problem.answer for problem, group in zip(problems, completions, strict=True) for _ in group]
    scored = rewards.score(texts, answers)
    remaining = iter(scored)
    groups = []
    for problem, prompt, group, group_id in zip(problems, prompts, completions, group_ids, strict=True):
        rollouts = []
        for completion in group:
            score = next(remaining).score
            rollouts.append(
                Rollout(
                    group_id,
                    problem,
                    tuple(prompt),
                    completion,
                    score.reward,
                    score.breakdown,
                    score.correct,
                )
            )
        groups.append(RolloutGroup(group_id, rollouts))
    return groups, scored


def collect_rollouts(
    engine: RolloutEngine,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    seeds: Sequence[Sequence[int]],
    group_ids: Sequence[int],
    params: SamplingParams,
    rewards: RewardPool,
    stopwatch: Stopwatch,
) -> tuple[list[RolloutGroup], list[ScoredText]]:
    """Sample and score one group per problem; the stopwatch tells sampling from scoring."""
    prompts = [encode_prompt(tokenizer, problem) for problem in problems]
    with stopwatch("rollout"):
        completions = sample_completions(engine, tokenizer, prompts, seeds, params)
    with stopwatch("reward"):
        return score_completions(problems, prompts, completions, rewards, group_ids)
