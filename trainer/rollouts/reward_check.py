"""Scoring of one real row before anything is sampled."""

from collections.abc import Mapping, Sequence

from rewards.sandbox import RewardPool, ScoringFailedError
from trainer.config.schema import TrainConfig
from trainer.errors import ConfigError, RewardError, shortened
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
        late, failure = scored.status == "timeout", scored.message if scored.status != "ok" else None
    except ScoringFailedError as error:
        failure = str(error).partition("): ")[2]  # the one failure, without the count of failures
        late = failure.startswith("no score after")
    if failure is not None:
        hint = "raise reward.timeout_s, or make it faster" if late else "repair the function"
        if "out of memory" in failure:
            hint = "raise reward.memory_mb, or repair the function"
        raise RewardError(
            f"the reward fails on the first problem: {failure}",
            f"reward.functions, text {shortened(repr(text), 60)}, answer {shortened(repr(problem.answer), 60)}",
            hint,
        )


def _check_columns(rewards: RewardPool, source: str, problems: Sequence[Problem]) -> None:
    for function, column in rewards.needed_columns:
        if not any(column in problem.columns for problem in problems):
            there = ", ".join(problems[0].columns) or "none"
            raise ConfigError(
                f"reward {function} asks for {column}, and no row has such a column; there are {there}",
                source,
                "name its parameters text, answer (or texts, answers) and columns of the data",
            )
