"""Scoring of one real row before anything is sampled."""

from collections.abc import Mapping, Sequence

from rewards.sandbox import RewardPool, ScoringFailedError
from trainer.config.schema import TrainConfig
from trainer.errors import ConfigError, shortened
from trainer.rollouts.collect import scoring_error
from trainer.types import Problem


def check_reward(
    rewards: RewardPool, config: TrainConfig, problems: Sequence[Problem], sets: Mapping[str, Sequence[Problem]]
) -> None:
    """Score the first problem's own answer, so that a reward that raises or hangs is noticed at once.

    Raises:
        ConfigError: a reward function asks for a column that no row has; names function, column and file.
        RewardError: there is no score; says for which text and answer.
    """
    _check_columns(rewards, ", ".join(source.source for source in config.data.train), problems)
    for name, of_set in sets.items():
        _check_columns(rewards, config.evaluation.sets[name].source, of_set)
    problem = problems[0]
    text = f"{problem.prefill}{problem.answer}"
    try:
        (scored,) = rewards.score([text], [problem.answer], [problem.columns])
        failure = scored.message if scored.status != "ok" else None
    except ScoringFailedError as error:
        failure = str(error).partition("): ")[2]  # the one failure, without the count of failures
    if failure is not None:
        text, answer = (shortened(repr(one), 60) for one in (text, problem.answer))
        where = f"reward.functions, text {text}, answer {answer}"
        raise scoring_error(f"the reward fails on the first problem: {failure}", where)


def _check_columns(rewards: RewardPool, source: str, problems: Sequence[Problem]) -> None:
    for function, column in rewards.needed_columns:
        if not any(column in problem.columns for problem in problems):
            there = ", ".join(problems[0].columns) or "none"
            raise ConfigError(
                f"reward {function} asks for {column}, and no row has such a column; there are {there}",
                source,
                "name its parameters text, answer (or texts, answers) and columns of the data",
            )
