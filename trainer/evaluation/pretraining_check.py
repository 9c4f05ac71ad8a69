"""Pre-training check: sample the initial policy and estimate the learning signal."""

import itertools
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special
from transformers import PreTrainedModel

from trainer.config.schema import TrainConfig
from trainer.evaluation.estimators import accuracy_interval
from trainer.evaluation.evaluate import correct_by_problem, measured
from trainer.parallel.device import local_device
from trainer.parallel.models import load_policy_for_inference
from trainer.planning.advice import Advice
from trainer.rollouts.build import build_engine
from trainer.rollouts.collect import (
    GroupRequest,
    derive_seed,
    sample_groups,
    sampling_params,
    score_groups,
)
from trainer.rollouts.prepared import RunInputs, prepare
from trainer.rules.groups import has_varied_rewards
from trainer.types import Rollout, RolloutGroup, all_rollouts

_logger = logging.getLogger(__name__)

_MIN_COMPLETIONS = 8  # minimum completions per problem
_CHUNKS = 10  # progress messages
_MANY_TRUNCATED = 0.2  # warn above this fraction of truncated completions
# above this fraction, truncation explains equal rewards: most completions end before the answer
_MOST_TRUNCATED = 0.5


def _equal_rewards(rewards: Sequence[float]) -> Sequence[int]:
    """Return for each distinct reward how many completions have it."""
    ordered = sorted(rewards)
    counts = [1]
    for pair in itertools.pairwise(ordered):
        if has_varied_rewards(pair):
            counts.append(0)
        counts[-1] += 1
    return counts


@dataclass(frozen=True)
class PretrainingCheck:
    """Completions of the initial policy, the same number for each problem, sampled and scored as in
    training.
    """

    groups: Sequence[RolloutGroup]
    set_sizes: Mapping[str, int]  # problems of each evaluation set

    @property
    def rollouts(self) -> list[Rollout]:
        """All completions."""
        return all_rollouts(self.groups)

    def zero_variance(self, group_size: int) -> float:
        """Return an unbiased estimate of the fraction of zero-variance groups, which give
        group-relative rules no gradient.

        Per problem it is the probability that G of the K completions, sampled without replacement,
        have equal rewards: ``sum over rewards r of C(K_r, G) / C(K, G)``. For binary rewards its
        expectation is p^G + (1 - p)^G. A group of size 1 never counts.
        """
        if group_size == 1:
            return 0.0
        fractions = []
        for group in self.groups:
            equal = _equal_rewards([rollout.reward for rollout in group.rollouts])
            of_equal_rewards = special.comb(equal, group_size).sum()
            fractions.append(of_equal_rewards / special.comb(sum(equal), group_size))
        return float(np.mean(fractions))

    def evaluation_error(self, problems: int, completions: int) -> float:
        """Return the standard error of accuracy due to sampling completions, for a set of
        ``problems`` similar problems.

        ``sqrt(mean over problems of p (1 - p) / (problems * completions))``, with an unbiased
        estimate of p (1 - p).
        """
        right, of = correct_by_problem(self.rollouts)
        variance = np.mean(right * (of - right) / (of * (of - 1)))
        return float(np.sqrt(variance / (problems * completions)))

    def error_on(self, config: TrainConfig, name: str) -> float:
        """Return the `evaluation_error` of an evaluation set with its configured number of
        completions.
        """
        return self.evaluation_error(
            self.set_sizes[name], config.evaluation.of_set(name).completions_per_problem
        )

    def as_json(self, group_sizes: Sequence[int]) -> dict[str, Any]:
        """Return the results as JSON values, with `zero_variance` for each of ``group_sizes``."""
        right, of = correct_by_problem(self.rollouts)
        completions = [rollout.completion for rollout in self.rollouts]
        lengths = [len(completion.token_ids) for completion in completions]
        return {
            "problems": len(right),
            "completions_per_problem": int(of[0]),
            **measured(self.rollouts),
            "accuracy_interval": accuracy_interval(right / of, of),
            "completion_length_p90": float(np.quantile(lengths, 0.9)),
            # mean -logprob of the sampled tokens [nats], unbiased at temperature 1
            "entropy": -sum(sum(completion.rollout_logprobs) for completion in completions)
            / sum(lengths),
            "zero_variance_groups": {str(size): self.zero_variance(size) for size in group_sizes},
        }

    def lines(self, config: TrainConfig, group_sizes: Sequence[int]) -> list[str]:
        """Return the results as lines of text."""
        values = self.as_json(group_sizes)
        low, high = values["accuracy_interval"]
        right, of = correct_by_problem(self.rollouts)
        prompts = config.rollout.prompts_per_step
        groups = []
        for size, zero_variance in values["zero_variance_groups"].items():
            useful = prompts * (1 - zero_variance)
            groups.append(
                f"group size {size}: {zero_variance:.0%} zero-variance groups, so {useful:.1f} of "
                f"{prompts} prompts per step give a gradient"
            )
        return [
            f"{len(right)} problems x {of[0]} completions: accuracy {values['accuracy']:.3f} (95% "
            f"interval {low:.3f} to {high:.3f}), pass@{of[0]} {values['pass_at_k']:.3f}, reward "
            f"{values['reward']:.3f}; {sum(right == 0)} problems never solved, {sum(right == of)} "
            "always",
            f"{values['completion_length']:.0f} tokens (90% at most "
            f"{values['completion_length_p90']:.0f}), {values['truncated']:.0%} truncated at "
            f"{config.rollout.max_new_tokens}; entropy {values['entropy']:.2f} nats per token",
            *groups,
            *(self._evaluation(config, name) for name in self.set_sizes),
        ]

    def advice(self) -> Iterator[Advice]:
        """Yield advice on changes before training.

        If most completions are truncated, rewards may be equal for that reason alone.
        """
        truncated = measured(self.rollouts)["truncated"]
        if truncated > _MANY_TRUNCATED:
            yield Advice(
                f"{truncated:.0%} of the completions are truncated at rollout.max_new_tokens",
                "rollout.max_new_tokens",
                "raise it, or use a model that gives shorter answers",
            )
        if truncated <= _MOST_TRUNCATED and len({r.reward for r in self.rollouts}) == 1:
            what = f"none of {len(self.rollouts)} completions was correct"
            if any(r.correct for r in self.rollouts):
                what = f"all {len(self.rollouts)} completions have the same reward"
            yield Advice(
                f"{what}: this reward gives no learning signal",
                "data.train, reward.functions",
                "use easier problems or another initial model, or add a reward for partial success",
            )

    def _evaluation(self, config: TrainConfig, name: str) -> str:
        section = config.evaluation.of_set(name)
        how = "greedy" if section.temperature == 0 else f"x {section.completions_per_problem}"
        error = self.error_on(config, name)
        known = "unknown size, because no completions of a problem differed"
        if error:
            known = f"about {error:.3f} from sampling"
        return (
            f"an evaluation on {name} ({self.set_sizes[name]} problems, {how}) has a standard "
            f"error of {known}"
        )


def check_before_training(
    config: TrainConfig, problems: int, group_sizes: Sequence[int]
) -> PretrainingCheck:
    """Load the run's model and data, and run the pre-training check.

    Raises:
        ConfigError, MissingError, RewardError: the run could not start.
    """
    with prepare(config) as prepared:
        model = load_policy_for_inference(config, local_device(config.parallel.device))
        return run_pretraining_check(config, model, prepared, problems, group_sizes)


def run_pretraining_check(
    config: TrainConfig,
    model: PreTrainedModel,
    prepared: RunInputs,
    problems: int,
    group_sizes: Sequence[int],
) -> PretrainingCheck:
    """Sample ``problems`` random training problems, or all if there are fewer, with max(8, largest
    group size) completions each, and score them.

    Raises:
        RewardError: scoring failed for too many completions.
        ConfigError, MissingError, EngineError: as in `build_engine`.
    """
    completions = max(_MIN_COMPLETIONS, *group_sizes)
    chosen = random.Random(config.seed).sample(
        prepared.problems, min(problems, len(prepared.problems))
    )
    requests = []
    for index, problem in enumerate(chosen):
        seeds = [derive_seed(config.seed, "look", index, k) for k in range(completions)]
        requests.append(GroupRequest(index, problem, seeds))
    tokenizer = prepared.tokenizer
    params = sampling_params(config, tokenizer)
    engine = build_engine(config, model, tokenizer)
    groups: list[RolloutGroup] = []
    try:
        engine.sync_weights(model)
        size = -(-len(requests) // _CHUNKS)
        for first in range(0, len(requests), size):
            _logger.info("sampling: %d of %d problems", first, len(requests))
            sampled = sample_groups(engine, tokenizer, requests[first : first + size], params)
            groups += score_groups(sampled, prepared.rewards)
    finally:
        engine.close()
    return PretrainingCheck(groups, {name: len(of_set) for name, of_set in prepared.sets.items()})
