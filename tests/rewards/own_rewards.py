"""Reward functions of a user, good and bad, named ``tests.rewards.own_rewards:...`` in the
tests.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np

from rewards import Score

MINIMUM = -7.0


def length(text, answer):
    return len(text)


def has_variable(text, answer):
    return float(text in os.environ)


def shout(text, answer):
    print("noise on stdout", flush=True)
    os.write(1, b'{"status": "ok", "reward": 99}\n')
    sys.stdin.read()
    return Score(1.0, True, {"shout": 1.0})


def misbehave(text, answer):
    if text == "loop":
        while True:
            pass
    if text == "sleep":
        time.sleep(60)
    if text == "memory":
        return len(bytearray(10**12))
    if text == "raise":
        raise KeyError("no such thing")
    if text == "exit":
        os._exit(3)
    if text == "nan":
        return float("nan")
    if text == "text":
        return "good"
    if text == "deep":
        return misbehave(text, answer)
    return 1.0


def kill_supervisor(text, answer):
    child = subprocess.Popen(["sleep", "60"])
    with open(answer, "w", encoding="utf-8") as file:
        file.write(str(child.pid))
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def _start_daemon(note):
    """As daemons do: a child in a session of its own, whose parent ends."""
    if (parent := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            with open(note, "w", encoding="utf-8") as file:
                json.dump({"daemon": os.getpid()}, file)
            time.sleep(600)
        os._exit(0)
    os.waitpid(parent, 0)
    while not (os.path.exists(note) and os.path.getsize(note)):
        time.sleep(0.01)


def start_daemon_and_hang(text, answer):
    _start_daemon(answer)
    time.sleep(60)


def start_daemon_and_die(text, answer):
    _start_daemon(answer)
    os.kill(os.getpid(), signal.SIGSEGV)


def start_daemon_and_return(text, answer):
    _start_daemon(answer)
    return 1.0


_WRITTEN = {
    "half": b'{"status": ',
    "forged": b'{"token": "", "status": "ok", "scores": [{"reward": 99, "correct": true}]}\n',
    "many": b'{"status": "ok"}\n' * 1000,
    "binary": b"\xff\x00\n",
}


def write_everywhere(text, answer):
    """Writes to every descriptor it finds, and so to the one of the scores."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if text in _WRITTEN and descriptor > 2:
            with contextlib.suppress(OSError):
                os.write(descriptor, _WRITTEN[text])
    return 1.0


def trickle(text, answer):
    """Writes to every descriptor it finds, and never ends a line."""
    while text == "trickle":
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2:
                with contextlib.suppress(OSError):
                    os.write(descriptor, b"x")
        time.sleep(0.05)
    return 1.0


def hang_in_native_code(text, answer):
    """Never returns to the interpreter, so that no signal handler or thread of Python runs."""
    with open(answer, "w", encoding="utf-8") as note:
        json.dump({"worker": os.getpid()}, note)
    return 9 ** (9**9)


def hang_and_stop_the_alarm(text, answer):
    """Takes the wall clock's limit away; the CPU clock's stays."""
    with open(answer, "w", encoding="utf-8") as note:
        json.dump({"worker": os.getpid()}, note)
    signal.alarm(0)
    while True:
        pass


def talkative(text, answer):
    breakdown = {
        "one name": {"x" * (100 << 20): 1.0},
        "many": dict.fromkeys(map(str, range(200_000)), 0.0),
    }
    return Score(1.0, True, breakdown.get(text, {}))


_hoard = []


def hoard(text, answer):
    """Fails from memory that earlier completions have used up."""
    if text == "big":
        _hoard.append(bytearray(150 << 20))
        return 1.0
    return float(len(bytearray(250 << 20)) > 0)


def against_the_mean(texts, answers):
    """Needs the whole batch: the length above its mean."""
    mean = sum(map(len, texts)) / len(texts)
    return [len(text) - mean for text in texts]


async def judged_together(texts, answers):
    return await asyncio.gather(
        *(judged(text, answer) for text, answer in zip(texts, answers, strict=True))
    )


async def judged(text, answer):
    await asyncio.sleep(0.2)
    return float(text == answer)


async def judged_but_one(text, answer):
    if text == "busy":
        raise ConnectionError("429 Too Many Requests")
    return await judged(text, answer)


def too_few(texts, answers):
    return [1.0] * (len(texts) - 1)


def one_number(texts, answers):
    return 1.0


def as_numpy(text, answer):
    return np.float32(0.5)


def for_trl(completions, answer, **columns):
    return [0.0] * len(completions)


not_a_function = 3


def killed_once(text, answer):
    """Be killed at the first try, and at every try where the text is ``always``."""
    if not os.path.exists(text):
        if text != "always":
            open(text, "w", encoding="utf-8").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return 1


def math(text, answer):
    return float(text == answer)


def overlong(text, answer):
    return Score(1.0, True, {"overlong": 1.0})


def breaks(text, answer):
    raise RuntimeError("no such thing")


def loads_a_library(text, answer):
    """Wraps the failure of an import that lacks memory, as libraries do."""
    try:
        bytearray(200 << 20)
    except MemoryError:
        raise ImportError("please install it") from None
    return 1.0


def asks_a_judge(text, answer):
    return float(len(os.environ["A_JUDGES_KEY"]))


def asks_a_judge_itself(text, answer):
    raise RuntimeError("the judge says: A_JUDGES_KEY is not set")


def does_without(text, answer):
    return float(len(os.environ.get("A_JUDGES_KEY", "")))


def types_of_data(text, answer, columns):
    return Score(1.0, True, {type(value).__name__: 0.0 for value in (answer, *columns)})
