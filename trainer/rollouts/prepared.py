"""Loading and validation of everything that a run, an evaluation or a pre-training check needs
except the model.
"""

import itertools
import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from loptune.errors import ConfigError, shortened
from rewards import REWARDS, correctness_reward
from rewards.notation import plain_answer
from rewards.sandbox import RewardPool, ScoringFailedError
from rewards.score import FailureCause
from trainer.config.reward import RewardConfig
from trainer.config.schema import TrainConfig
from trainer.policy.load import check_weights, load_tokenizer
from trainer.policy.vocabulary import check_prompts, check_vocabulary, embedding_rows
from trainer.problems.load import encode_prompt, load_evaluation_sets, load_problems
from trainer.rollouts.build import build_rewards
from trainer.rollouts.scoring_errors import scoring_error, withheld_hint
from trainer.types import Problem

_logger = logging.getLogger(__name__)

_UNLIMITED_MIB = 1 << 26  # address space, far more than any machine has
_CHECK_LIMIT_S = 10.0  # time limit; answers that are not scored by then are not checked
_CHUNK = 64  # problems per call
_NAMED = 3  # number of rows that a warning lists
_NUMERIC = ("math", "last_number")  # rewards that ignore text around an answer


@dataclass(frozen=True)
class RunInputs:
    """Tokenizer, problems and reward pool. As a context manager it closes the pool on exit."""

    tokenizer: Any
    problems: list[Problem]  # training problems; empty for `trainer evaluate`
    sets: dict[str, list[Problem]]  # evaluation sets
    rewards: RewardPool
    # evaluation set -> the training pool, or the set's own pool
    set_rewards: Mapping[str, RewardPool]

    def close(self) -> None:
        """End the scoring processes."""
        for pool in {self.rewards, *self.set_rewards.values()}:
            pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def prepare(config: TrainConfig, trains: bool = True, max_failure_rate: float = 1.0) -> RunInputs:
    """Check the weights, load tokenizer and data, start the reward pool, and score one problem as a
    test.

    If ``trains`` is False, training data is not loaded, and no problem is scored. The pools use
    ``max_failure_rate``, see `RewardPool`.

    Raises:
        MissingError, ConfigError, RewardError: the run could not start.
    """
    check_weights(config.model)
    tokenizer, problems, sets = load_data(config, trains)
    pools = build_reward_pools(config, max_failure_rate)
    rewards = pools[reward_key(config.reward.functions)]
    set_rewards = {name: pools[reward_key(config.reward_of_set(name))] for name in sets}
    inputs = RunInputs(tokenizer, problems, sets, rewards, set_rewards)
    if trains:
        try:
            usable = check_answers(config.reward.functions, problems, sets_of_reward(config, sets))
            check_reward(rewards, usable, config.reward)
        except BaseException:
            inputs.close()
            raise
    return inputs


def build_reward_pools(config: TrainConfig, max_failure_rate: float) -> dict[str, RewardPool]:
    """Create one reward pool for training, and one for each other reward of an evaluation set.

    Raises:
        ConfigError: a reward function cannot be used, or there are too many workers.
    """
    rewards = [config.reward.functions, *map(config.reward_of_set, config.evaluation.sets)]
    pools: dict[str, RewardPool] = {}
    for functions in rewards:
        if reward_key(functions) in pools:
            continue
        settings = config.reward.model_copy(update={"functions": functions})
        try:
            pools[reward_key(functions)] = build_rewards(settings, max_failure_rate)
        except BaseException:
            for pool in pools.values():
                pool.close()
            raise
    return pools


def reward_key(functions: Mapping[str, float]) -> str:
    """Return a key for reward functions and weights. The order matters: of equal weights, the
    first function decides correctness.
    """
    return json.dumps(functions)


def sets_of_reward(
    config: TrainConfig, sets: Mapping[str, list[Problem]]
) -> dict[str, list[Problem]]:
    """Return the evaluation sets that use the training reward."""
    return {
        name: problems
        for name, problems in sets.items()
        if config.reward_of_set(name) == config.reward.functions
    }


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
    out_of_range = [token for token in config.rollout.stop_token_ids if token > last]
    if out_of_range:
        raise ConfigError(
            f"stop token id {out_of_range[0]} is outside the vocabulary (largest id: {last})",
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


def check_reward(rewards: RewardPool, problem: Problem, config: RewardConfig) -> None:
    """Score the problem's reference answer, to detect a reward function that raises or hangs, and
    warn if the function asks for secrets that it does not get.

    Raises:
        RewardError: scoring failed; the error shows the text and the answer.
    """
    failed = _failure_of(rewards, problem)
    if failed is not None:
        failure, cause = failed
        if cause == "" and _scores_without_memory_limit(problem, config):
            cause = "memory"
            failure = f"{failure}; it works without the memory limit of {config.memory_mb} MiB"
        text = f"{problem.prefill}{problem.answer}"
        text, answer = (shortened(repr(value), 60) for value in (text, problem.answer))
        raise scoring_error(
            f"the reward function failed on the first problem's reference answer: {failure}",
            f"reward.functions, text {text}, answer {answer}",
            cause,
            rewards.withheld,
        )
    if rewards.withheld:
        _logger.warning("warning: %s", withheld_hint(rewards.withheld))


def _failure_of(rewards: RewardPool, problem: Problem) -> tuple[str, FailureCause] | None:
    """Return why the problem's reference answer cannot be scored, with the cause; None if it can
    be.
    """
    text = f"{problem.prefill}{problem.answer}"
    try:
        (scored,) = rewards.score([text], [problem.answer], [problem.columns])
    except ScoringFailedError as error:
        return error.failure, error.cause
    return None if scored.status == "ok" else (scored.message, scored.cause)


def _scores_without_memory_limit(problem: Problem, config: RewardConfig) -> bool:
    """Return whether a reward that failed works without its memory limit. A library that runs out
    of memory may raise any exception, such as an ImportError or a RuntimeError.
    """
    unlimited = config.model_copy(update={"memory_mb": _UNLIMITED_MIB, "workers": 1})
    try:
        with build_rewards(unlimited, max_failure_rate=1.0) as rewards:
            return _failure_of(rewards, problem) is None
    except ConfigError:
        return False


def check_answers(
    functions: Mapping[str, float],
    problems: Sequence[Problem],
    sets: Mapping[str, Sequence[Problem]] | None = None,
) -> Problem:
    """Score the answers of data files against themselves, for about 10 s, if a built-in reward
    decides correctness. Return the first training problem whose answer was not found to be wrong.

    Rows whose own answer is not scored as correct would always get the lowest reward. A warning
    lists these rows, and rows whose answer contains extra text. The user's reward functions are not
    called: their correct answers are unknown here, and a call may cost money.

    Raises:
        ConfigError: no answer of the training data or of a set can be correct; the error shows the
            first row.
    """
    judge = correctness_reward(functions)
    sources = [problems, *(sets or {}).values()]
    of_files = [[problem for problem in source if problem.place] for source in sources]
    if judge not in REWARDS or not any(of_files):
        return problems[0]
    end = time.monotonic() + _CHECK_LIMIT_S
    never_right = []
    with RewardPool({judge: 1.0}, timeout_s=5.0, memory_mb=1024, workers=1) as rewards:
        for rows in filter(None, of_files):
            never_right += _check_rows(rewards, judge, rows, end)
            if judge in _NUMERIC:
                _report_wrapped(judge, rows)
    unusable = set(map(id, never_right))
    return next(problem for problem in problems if id(problem) not in unusable)


def _check_rows(
    rewards: RewardPool, judge: str, rows: Sequence[Problem], end: float
) -> list[Problem]:
    """Return the problems whose answer is not correct when used as completion, and warn about them.

    Raises:
        ConfigError: none of the checked answers is correct.
    """
    checked = 0
    wrong = []
    messages = []
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK]
        scored = rewards.score(
            [_perfect_completion(judge, problem) for problem in chunk],
            [problem.answer for problem in chunk],
        )
        checked += len(chunk)
        for problem, result in zip(chunk, scored, strict=True):
            if result.status != "timeout" and not result.score.correct:
                wrong.append(problem)
                messages.append(result.message)
        if time.monotonic() > end:
            break
    if wrong and len(wrong) == checked:
        reason = next(filter(None, messages), "")
        raise _never_right(judge, wrong, reason)
    if wrong:
        named = [f"{row.place}: {shortened(repr(row.answer), 40)}" for row in wrong[:_NAMED]]
        if len(wrong) > _NAMED:
            named.append("...")
        _logger.warning(
            "warning: %d of %d reference answers are not scored as correct by reward %s: %s",
            len(wrong),
            checked,
            judge,
            "; ".join(named),
        )
    return wrong


def _never_right(judge: str, wrong: Sequence[Problem], reason: str) -> ConfigError:
    """Return the error for data without any answer that the reward accepts; ``reason`` is the
    reward's message, or empty.
    """
    why = f": {reason}" if reason else ""
    return ConfigError(
        f"reward {judge} scores none of {len(wrong)} reference answers as correct when they are "
        f"used as completions{why}",
        f"{wrong[0].place}: {shortened(repr(wrong[0].answer), 60)}",
        "use a reward that supports these answers, set data.task to the task of the data, or "
        "correct the answers",
        key="reward.functions",
        code="answers-never-right",
    )


def _perfect_completion(judge: str, problem: Problem) -> str:
    """Return prefill and a completion that contains only the answer, in the form that the reward
    expects.
    """
    answer = _shown(problem.answer)
    if judge == "math":
        return f"\\boxed{{{plain_answer(answer)}}}"
    if judge == "last_number":
        return plain_answer(answer)
    return f"<think></think> <answer>{answer}</answer>"


def _shown(answer: Any) -> str:
    """Return the answer as text: the first answer of a list, or the solution text of a mapping."""
    if isinstance(answer, list | tuple) and answer:
        answer = answer[0]
    if isinstance(answer, Mapping):
        answer = answer.get("solution_text_format", answer)
    return str(answer)


def _report_wrapped(judge: str, problems: Sequence[Problem]) -> None:
    """Warn about answers that contain extra text, such as a worked solution."""
    wrapped = [
        problem
        for problem in problems
        if isinstance(problem.answer, str)
        and plain_answer(problem.answer) != problem.answer.strip()
    ]
    if wrapped:
        first = wrapped[0]
        _logger.warning(
            "warning: %d of %d reference answers contain extra text; reward %s compares with %r "
            "instead of %s (%s)",
            len(wrapped),
            len(problems),
            judge,
            plain_answer(first.answer),
            shortened(repr(first.answer), 60),
            first.place,
        )
