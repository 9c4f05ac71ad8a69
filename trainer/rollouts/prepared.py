"""Everything that a run, an evaluation or a look needs beside its model, loaded and checked
once.
"""

from dataclasses import dataclass
from typing import Any, Self

from rewards.sandbox import RewardPool
from trainer.config.schema import TrainConfig
from trainer.errors import ConfigError
from trainer.policy.load import check_weights, load_tokenizer
from trainer.problems.load import load_evaluation_sets, load_problems
from trainer.rollouts.build import build_rewards
from trainer.rollouts.reward_check import check_reward
from trainer.types import Problem


@dataclass(frozen=True)
class Prepared:
    """Tokenizer, problems and scoring processes; leaving its context ends the processes."""

    tokenizer: Any
    problems: list[Problem]  # to train on; none of an evaluation alone
    sets: dict[str, list[Problem]]  # to evaluate
    rewards: RewardPool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.rewards.close()


def prepare(config: TrainConfig, trains: bool = True, max_failure_rate: float = 1.0) -> Prepared:
    """Look for the weights, load tokenizer and data, start the scoring processes, and score one
    row.

    Without ``trains`` training data are neither loaded nor scored.

    Raises:
        MissingError, ConfigError, RewardError: the run could not begin.
    """
    check_weights(config.model)
    tokenizer, problems, sets = load_data(config, trains)
    rewards = build_rewards(config.reward, max_failure_rate)
    if trains:
        try:
            check_reward(rewards, problems[0])
        except BaseException:
            rewards.close()
            raise
    return Prepared(tokenizer, problems, sets, rewards)


def load_data(
    config: TrainConfig, trains: bool = True
) -> tuple[Any, list[Problem], dict[str, list[Problem]]]:
    """Load the tokenizer, the problems to train on (none without ``trains``) and those to evaluate.

    Raises:
        MissingError, ConfigError: no tokenizer, a stop token that it lacks, or data that cannot be
            read.
    """
    tokenizer = load_tokenizer(config.model)
    last = max(tokenizer.get_vocab().values())  # ids may have gaps
    beyond = [token for token in config.rollout.stop_token_ids if token > last]
    if beyond:
        raise ConfigError(
            f"stop token {beyond[0]} is outside the vocabulary, whose last token is {last}",
            "rollout.stop_token_ids",
            "give ids of the model's tokenizer",
        )
    problems = load_problems(config.data.train, config.data, tokenizer) if trains else []
    return tokenizer, problems, load_evaluation_sets(config, tokenizer)
