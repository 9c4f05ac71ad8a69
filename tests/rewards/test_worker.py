"""The protocol of a scoring process, spoken by hand."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import pytest

from rewards.score import Score
from rewards.worker import _as_json, _describe, _lines
from tests.paths import ROOT

OWN = "tests.rewards.own_rewards"


@contextmanager
def worker(functions: dict[str, float], memory_mb: int = 600) -> Iterator[tuple[subprocess.Popen[bytes], TextIO]]:
    """A scoring process and what it replies."""
    (replies, reply_fd), (lifeline_fd, lifeline) = os.pipe(), os.pipe()
    settings = {
        "functions": functions,
        "memory_mb": memory_mb,
        "reply_fd": reply_fd,
        "lifeline_fd": lifeline_fd,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "rewards.worker", json.dumps(settings)],
        stdin=subprocess.PIPE,
        pass_fds=(reply_fd, lifeline_fd),
        cwd=ROOT,
    )
    os.close(reply_fd), os.close(lifeline_fd)
    with open(replies) as lines:
        try:
            yield process, lines
        finally:
            os.close(lifeline)
            process.stdin.close()
            process.wait(30)


def ask(process: subprocess.Popen[bytes], lines: TextIO, *questions: Any) -> list[dict[str, Any]]:
    process.stdin.write(b"".join(json.dumps(question).encode() + b"\n" for question in questions))
    process.stdin.flush()
    return [json.loads(lines.readline()) for _ in questions]


def test_questions_are_answered_in_their_order_with_their_tokens():
    with worker({f"{OWN}:misbehave": 1.0}) as (process, lines):
        assert json.loads(lines.readline()) == {"token": "", "status": "ready", "minimum": -7.0, "batches": False}
        right, failed, again = ask(
            process, lines, ["a", ["fine"], [None]], ["b", ["raise"], [None]], ["c", ["fine"], [None]]
        )
        assert right["token"] == "a" and right["status"] == "ok"
        assert [score["reward"] for score in right["scores"]] == [1.0]
        assert failed == {"token": "b", "status": "error", "message": "KeyError: 'no such thing'"}
        assert (again["token"], again["status"]) == ("c", "ok")
        (nan,) = ask(process, lines, ["d", ["nan"], [None]])
        assert nan["status"] == "error" and "returned nan; expected a Score" in nan["message"]
        (memory,) = ask(process, lines, ["e", ["memory"], [None]])
        assert memory == {"token": "e", "status": "memory", "message": "out of memory (limit 600 MiB)"}
        process.stdin.close()
        assert process.wait(30) == 0  # it ends with its questions


def test_a_batch_is_scored_in_one_call():
    with worker({f"{OWN}:against_the_mean": 1.0}) as (process, lines):
        assert json.loads(lines.readline())["batches"] is True
        (reply,) = ask(process, lines, ["a", ["x", "xxx"], [None, None]])
        assert [score["reward"] for score in reply["scores"]] == [-1.0, 1.0]


def test_an_unknown_function_is_refused_before_any_question():
    with worker({"maths": 1.0}) as (process, lines):
        reply = json.loads(lines.readline())
        assert (reply["status"], "did you mean math?" in reply["message"]) == ("refused", True)
        assert process.wait(30) == 0


def test_lines_are_whole_however_they_arrive():
    requests, ours = os.pipe()
    os.write(ours, b'["a"]\n["b"')
    lines = _lines(requests)
    assert next(lines) == b'["a"]'
    os.write(ours, b"]\n\nrest")
    os.close(ours)
    assert list(lines) == [b'["b"]', b""]  # what was not ended is no question
    os.close(requests)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf")])
def test_a_score_that_is_no_number_is_refused(reward):
    with pytest.raises(ValueError, match=f"the reward is {reward}"):
        _as_json(Score(reward, False))


def test_scores_become_plain_json_values():
    assert _as_json(Score(2, 1, {"format": 2}, parsed=0)) == {
        "reward": 2.0,
        "correct": True,
        "breakdown": {"format": 2.0},
        "parsed": False,
    }


def test_errors_are_described_in_short():
    assert _describe(ValueError("no such reward"), 5) == "no such reward"
    assert _describe(UnicodeError("odd"), 5) == "UnicodeError: odd"
    assert _describe(MemoryError(), 5) == "out of memory (limit 5 MiB)"
    assert _describe(TypeError("x" * 1000), 5) == "TypeError: " + "x" * 500
