"""Loading and validation of everything that a run, an evaluation or a pre-training check needs
except the model.
"""

import itertools
from dataclasses import dataclass
from typing import Any, Self

from rewards.sandbox import RewardPool
from trainer.config.schema import TrainConfig
from trainer.errors import ConfigError
from trainer.policy.load import check_weights, load_tokenizer
from trainer.policy.vocabulary import check_prompts, check_vocabulary, embedding_rows
from trainer.problems.load import encode_prompt, load_evaluation_sets, load_problems
from trainer.rollouts.build import build_rewards
from trainer.rollouts.reward_check import check_answers, check_reward
from trainer.types import Problem


@dataclass(frozen=True)
class Prepared:
    """Tokenizer, problems and reward pool. As a context manager it closes the pool on exit."""

    tokenizer: Any
    problems: list[Problem]  # training problems; empty for `trainer evaluate`
    sets: dict[str, list[Problem]]  # evaluation sets
    rewards: RewardPool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.rewards.close()


def prepare(config: TrainConfig, trains: bool = True, max_failure_rate: float = 1.0) -> Prepared:
    """Check the weights, load tokenizer and data, start the reward pool, and score one problem as a
    test.

    If ``trains`` is False, training data is not loaded.

    Raises:
        MissingError, ConfigError, RewardError: the run could not start.
    """
    check_weights(config.model)
    tokenizer, problems, sets = load_data(config, trains)
    rewards = build_rewards(config.reward, max_failure_rate)
    if trains:
        try:
            usable = check_answers(config.reward.functions, problems, sets)
            check_reward(rewards, usable)
        except BaseException:
            rewards.close()
            raise
    return Prepared(tokenizer, problems, sets, rewards)


def load_data(
    config: TrainConfig, trains: bool = True
) -> tuple[Any, list[Problem], dict[str, list[Problem]]]:
    """Load the tokenizer, the training problems (if ``trains``) and the evaluation sets.

    Raises:
        MissingError, ConfigError: missing tokenizer, unknown stop token, a token without a row in
        the embedding, or unreadable data.
    """
    tokenizer = load_tokenizer(config.model)
    last = max(tokenizer.get_vocab().values())  # ids may have gaps
    beyond = [token for token in config.rollout.stop_token_ids if token > last]
    if beyond:
        raise ConfigError(
            f"stop token id {beyond[0]} is outside the vocabulary (largest id: {last})",
            "rollout.stop_token_ids",
            "use ids of the model's tokenizer",
            code="stop-token-unknown",
        )
    rows = embedding_rows(config.model)
    check_vocabulary(tokenizer, rows, config.model.name_or_path)
    problems = load_problems(config.data.train, config.data, tokenizer) if trains else []
    sets = load_evaluation_sets(config, tokenizer)
    if last >= rows:  # tokens that should not occur, see `check_vocabulary`
        every_problem = itertools.chain(problems, *sets.values())
        check_prompts([encode_prompt(tokenizer, problem) for problem in every_problem], rows)
    return tokenizer, problems, sets
