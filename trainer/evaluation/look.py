"""A look before training: what completions of the start policy say about what a run could learn."""

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special
from transformers import PreTrainedModel

from trainer.config.schema import TrainConfig
from trainer.evaluation.estimators import accuracy_interval
from trainer.parallel.device import compute_dtype, local_device
from trainer.planning.advice import Advice
from trainer.policy.load import load_policy
from trainer.rollouts.build import build_engine
from trainer.rollouts.collect import GroupRequest, derive_seed, sample_groups, sampling_params, score_groups
from trainer.rollouts.prepared import Prepared, prepare
from trainer.types import Rollout

_FEWEST = 8  # completions of a problem
_CHUNKS = 10  # after each of which the progress is told
_MANY = 0.5  # share of completions that is worth a warning
_DIGITS = 9  # rewards that agree so far are equal


@dataclass(frozen=True)
class Look:
    """Completions of the start policy, sampled and scored as in training; arrays are [problems, completions]."""

    rewards: NDArray[np.float64]
    correct: NDArray[np.bool_]
    tokens: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    entropy: float  # mean -logprob of the sampled tokens, an estimate without bias at temperature 1 [nats]
    set_sizes: Mapping[str, int]  # problems of each evaluation set

    def silent(self, group_size: int) -> float:
        """Share of groups whose rewards are all equal, of which rules that compare within a group learn nothing.

        Without bias: the chance that G of a problem's K completions, drawn without replacement, agree,
        ``sum over rewards r of C(K_r, G) / C(K, G)``; with two rewards its mean is that of p^G + (1 - p)^G.
        """
        drawn = special.comb(self.rewards.shape[1], group_size)
        shares = [
            special.comb(np.unique(row, return_counts=True)[1], group_size).sum() / drawn
            for row in self.rewards.round(_DIGITS)
        ]
        return float(np.mean(shares))

    def evaluation_error(self, problems: int, completions: int) -> float:
        """Return the standard error of an accuracy over such problems that chance in sampling their completions makes.

        ``sqrt(mean over problems of p (1 - p) / (problems * completions))``, p (1 - p) estimated without bias.
        """
        right = self.correct.sum(axis=1)
        of = self.correct.shape[1]
        return float(np.sqrt(np.mean(right * (of - right) / (of * (of - 1))) / (problems * completions)))

    def error_on(self, config: TrainConfig, name: str) -> float:
        """`evaluation_error` of an evaluation set as the run evaluates it."""
        return self.evaluation_error(self.set_sizes[name], config.evaluation.of_set(name).completions_per_problem)

    def as_json(self, group_sizes: Sequence[int]) -> dict[str, Any]:
        """Return the figures of `lines` as JSON values."""
        right = self.correct.sum(axis=1)
        of = self.correct.shape[1]
        return {
            "problems": len(right),
            "completions_per_problem": of,
            "accuracy": self.correct.mean().item(),
            "accuracy_interval": accuracy_interval(right / of, np.full(len(right), of)),
            "pass_at_k": (right > 0).mean().item(),
            "reward": self.rewards.mean().item(),
            "completion_length": self.tokens.mean().item(),
            "completion_length_p90": float(np.quantile(self.tokens, 0.9)),
            "truncated": self.truncated.mean().item(),
            "entropy": self.entropy,
            "silent_groups": {str(size): self.silent(size) for size in group_sizes},
        }

    def lines(self, config: TrainConfig, group_sizes: Sequence[int]) -> list[str]:
        """Return the look in words."""
        values = self.as_json(group_sizes)
        (low, high), of = values["accuracy_interval"], self.correct.shape[1]
        never, always = (int((self.correct.mean(axis=1) == share).sum()) for share in (0, 1))
        prompts = config.rollout.prompts_per_step
        groups = [
            f"with group size {size}, {silent:.0%} of the groups teach nothing, which leaves "
            f"{prompts * (1 - silent):.1f} of {prompts} prompts a step"
            for size, silent in values["silent_groups"].items()
        ]
        return [
            f"{len(self.correct)} problems x {of} completions: accuracy {values['accuracy']:.3f} "
            f"(95% interval {low:.3f} to {high:.3f}), pass@{of} {values['pass_at_k']:.3f}, reward "
            f"{values['reward']:.3f}; {never} problems never solved, {always} always",
            f"{values['completion_length']:.0f} tokens (90% at most {values['completion_length_p90']:.0f}), "
            f"{values['truncated']:.0%} truncated at {config.rollout.max_new_tokens}; "
            f"entropy {self.entropy:.2f} nats a token",
            *groups,
            *(self._evaluation(config, name) for name in self.set_sizes),
        ]

    def advice(self, config: TrainConfig) -> Iterator[Advice]:
        """Yield what to change before training."""
        if np.ptp(self.rewards) == 0:
            what = "was correct" if not self.correct.any() else "differs in reward"
            yield Advice(
                f"no completion of {self.correct.size} {what}: nothing will be learned from this reward",
                "data.train, reward.functions",
                "take easier problems, another start policy, or add a reward for a part of the way",
            )
        if (share := self.truncated.mean()) > _MANY:
            yield Advice(
                f"{share:.0%} of the completions are truncated",
                "rollout.max_new_tokens",
                f"raise it above {config.rollout.max_new_tokens}",
            )

    def _evaluation(self, config: TrainConfig, name: str) -> str:
        section = config.evaluation.of_set(name)
        how = "greedy" if section.temperature == 0 else f"x {section.completions_per_problem}"
        return (
            f"an evaluation on {name} ({self.set_sizes[name]} problems, {how}) has a standard error of about "
            f"{self.error_on(config, name):.3f} from sampling alone"
        )


def look_at(config: TrainConfig, problems: int, group_sizes: Sequence[int]) -> Look:
    """Load what a run would train and take the look.

    Raises:
        ConfigError, MissingError, RewardError: what would keep the run from starting.
    """
    with prepare(config) as prepared:
        device = local_device(config.parallel.device)
        model = load_policy(config.model, device, compute_dtype(config.model, device)).requires_grad_(False)
        return take_look(config, model, prepared, problems, group_sizes)


def take_look(
    config: TrainConfig, model: PreTrainedModel, prepared: Prepared, problems: int, group_sizes: Sequence[int]
) -> Look:
    """Sample the largest group, or eight, of so many training problems, chosen by the seed."""
    completions = max(_FEWEST, *group_sizes)
    chosen = random.Random(config.seed).sample(prepared.problems, min(problems, len(prepared.problems)))
    requests = [
        GroupRequest(i, problem, [derive_seed(config.seed, "look", i, k) for k in range(completions)])
        for i, problem in enumerate(chosen)
    ]
    tokenizer = prepared.tokenizer
    params = sampling_params(config.rollout, tokenizer)
    engine = build_engine(config, model, tokenizer)
    rollouts: list[list[Rollout]] = []
    try:
        engine.sync_weights(model)
        size = -(-len(requests) // _CHUNKS)
        for first in range(0, len(requests), size):
            print(f"sampling: {first} of {len(requests)} problems", file=sys.stderr)
            sampled = sample_groups(engine, tokenizer, requests[first : first + size], params)
            rollouts += [list(group.rollouts) for group in score_groups(sampled, prepared.rewards)]
    finally:
        engine.close()

    def array(value: Callable[[Rollout], Any]) -> NDArray[Any]:
        return np.array([[value(rollout) for rollout in group] for group in rollouts])

    tokens = array(lambda rollout: len(rollout.completion.token_ids))
    return Look(
        rewards=array(lambda rollout: rollout.reward),
        correct=array(lambda rollout: rollout.correct),
        tokens=tokens,
        truncated=array(lambda rollout: rollout.completion.finish_reason == "length"),
        entropy=-float(array(lambda rollout: sum(rollout.completion.rollout_logprobs)).sum() / tokens.sum()),
        set_sizes={name: len(of_set) for name, of_set in prepared.sets.items()},
    )
