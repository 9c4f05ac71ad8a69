"""Tests of the reward on the data before sampling."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rewards import REWARDS, judge_of
from rewards.notation import plain_answer
from rewards.sandbox import RewardPool, ScoredText, ScoringFailedError
from trainer.errors import ConfigError, shortened
from trainer.rollouts.collect import scoring_error
from trainer.types import Problem

_logger = logging.getLogger(__name__)

_CHECK_LIMIT_S = 10.0  # more answers than are scored by then are not checked
_CHUNK = 64
_NAMED = 3  # rows that a warning names
_NUMERIC = ("math", "last_number")  # rewards that leave out what is wrapped around an answer


def check_reward(rewards: RewardPool, problem: Problem) -> None:
    """Score the first problem's reference answer, to detect a reward function that raises or hangs.

    Raises:
        RewardError: scoring failed; names the text and the answer.
    """
    text = f"{problem.prefill}{problem.answer}"
    try:
        (scored,) = rewards.score([text], [problem.answer], [problem.columns])
        failure = scored.message if scored.status != "ok" else None
    except ScoringFailedError as error:
        failure = error.failure
    if failure is not None:
        text, answer = (shortened(repr(value), 60) for value in (text, problem.answer))
        where = f"reward.functions, text {text}, answer {answer}"
        raise scoring_error(
            f"the reward function failed on the first problem's reference answer: {failure}", where
        )


def check_answers(functions: Mapping[str, float], problems: Sequence[Problem]) -> None:
    """Score every answer of the data against itself, if a built-in reward decides what is correct.

    Rows whose own answer would not be correct train for ever at the lowest reward. A warning names
    them, and those whose answer holds more than the answer. Own reward functions are not called:
    what is right for them is unknown here, and a call may cost money.

    Raises:
        ConfigError: no answer can ever be right; names the first row.
    """
    judge = judge_of(functions)
    rows = [problem for problem in problems if problem.place]
    if judge not in REWARDS or not rows:
        return
    never_right, checked = _never_right(judge, rows)
    if never_right:
        first = never_right[0][0]
        answer = shortened(repr(first.answer), 60)
        reason = never_right[0][1].message
        if len(never_right) == checked:
            raise ConfigError(
                f"reward {judge} finds none of the {checked} answers correct as its own completion"
                f"{f': {reason}' if reason else ''}",
                f"{first.place}: {answer}",
                "use a reward that supports these answers, set data.task to the kind of the data, "
                "or correct the answers",
                key="reward.functions",
                code="answers-never-right",
            )
        _logger.warning(
            "warning: %d of %d answers can never be right for reward %s: %s%s",
            len(never_right),
            checked,
            judge,
            "; ".join(
                f"{problem.place}: {shortened(repr(problem.answer), 40)}"
                for problem, _ in never_right[:_NAMED]
            ),
            "; ..." if len(never_right) > _NAMED else "",
        )
    if judge in _NUMERIC:
        _report_wrapped(judge, rows)


def _never_right(
    judge: str, problems: Sequence[Problem]
) -> tuple[list[tuple[Problem, ScoredText]], int]:
    """Return the problems whose answer is not correct as its own completion, and how many were
    checked.
    """
    wrong = []
    checked = 0
    end = time.monotonic() + _CHECK_LIMIT_S
    with RewardPool({judge: 1.0}, timeout_s=5.0, memory_mb=1024, workers=1) as rewards:
        for start in range(0, len(problems), _CHUNK):
            chunk = problems[start : start + _CHUNK]
            scored = rewards.score(
                [_perfect_completion(judge, problem) for problem in chunk],
                [problem.answer for problem in chunk],
            )
            checked += len(chunk)
            wrong += [
                (problem, result)
                for problem, result in zip(chunk, scored, strict=True)
                if result.status != "timeout" and not result.score.correct
            ]
            if time.monotonic() > end:
                break
    return wrong, checked


def _perfect_completion(judge: str, problem: Problem) -> str:
    """Return prefill and a completion that states nothing but the answer, in the reward's form."""
    answer = _shown(problem.answer)
    if judge == "math":
        return f"\\boxed{{{plain_answer(answer)}}}"
    if judge == "last_number":
        return plain_answer(answer)
    return f"<think></think> <answer>{answer}</answer>"


def _shown(answer: Any) -> str:
    """Return the answer as text: the first of several, and the text of a mapping's solution."""
    if isinstance(answer, list | tuple) and answer:
        answer = answer[0]
    if isinstance(answer, Mapping):
        answer = answer.get("solution_text_format", answer)
    return str(answer)


def _report_wrapped(judge: str, problems: Sequence[Problem]) -> None:
    """Warn of answers that hold more than the answer, such as a worked solution."""
    wrapped = [
        problem
        for problem in problems
        if isinstance(problem.answer, str)
        and plain_answer(problem.answer) != problem.answer.strip()
    ]
    if wrapped:
        first = wrapped[0]
        _logger.warning(
            "warning: %d of %d answers hold more than the answer; reward %s compares with %r "
            "instead of %s (%s)",
            len(wrapped),
            len(problems),
            judge,
            plain_answer(first.answer),
            shortened(repr(first.answer), 60),
            first.place,
        )
