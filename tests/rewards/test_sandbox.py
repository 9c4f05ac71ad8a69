import asyncio
import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import threading
import time
from decimal import Decimal

import psutil
import pytest

from rewards.sandbox import PoolClosedError, RewardPool, ScoringFailedError
from tests.paths import ROOT

OWN_SIGNED = "tests.rewards.signed_reward"
OWN = "tests.rewards.own_rewards"
ENDLESS = r"\boxed{\tan(\tan(\tan(\tan(\tan(\tan(10))))))}"  # for sympy


def pool(*names, workers=1, timeout_s=2.0, memory_mb=600, **options):
    return RewardPool(
        dict.fromkeys(names, 1.0),
        timeout_s=timeout_s,
        memory_mb=memory_mb,
        workers=workers,
        **options,
    )


def command_line(process):
    """The command line of a process; none once it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def workers_alive(recursive=False):
    """The supervisors, one for each worker; their children too where recursive."""
    return {
        child.pid
        for child in psutil.Process().children(recursive)
        if is_running(child.pid) and "rewards.worker" in command_line(child)
    }


def is_running(pid):
    """Whether a process runs; it may end between two questions."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def wait_until_gone(pids, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        left = {pid for pid in pids if is_running(pid)}
        if not left:
            return left
        time.sleep(0.05)
    return left


@pytest.mark.parametrize("workers", [1, 3])
def test_order_is_kept(workers):
    texts = ["x" * (i % 97) for i in range(3000)]
    with pool(f"{OWN}:length", workers=workers) as rewards:
        scored = rewards.score(texts, [None] * len(texts))
    assert [result.score.reward for result in scored] == [i % 97 for i in range(3000)]
    assert {result.status for result in scored} == {"ok"}


def test_a_batch_function_sees_the_fraction_of_each_process():
    with pool(f"{OWN}:against_the_mean", workers=2) as rewards:
        scored = rewards.score(["a", "bbb", "cc", "cccccc"], [None] * 4)
    # of (a, bbb) and of (cc, cccccc)
    assert [result.score.reward for result in scored] == [-1.0, 1.0, -2.0, 2.0]


def test_a_batch_function_that_fails_fails_for_its_batch():
    with pool(f"{OWN}:too_few") as rewards:
        scored = rewards.score(["a", "b"], [None] * 2)
    assert [(result.status, result.score.reward) for result in scored] == [("error", -7.0)] * 2
    assert scored[0].message == f"reward {OWN}:too_few returned 1 scores for 2 texts"


@pytest.mark.parametrize(
    ("functions", "bad", "status", "message"),
    [
        ([f"{OWN}:judged_but_one"], "busy", "error", "ConnectionError: 429 Too Many Requests"),
        ([f"{OWN}:judged", f"{OWN}:misbehave"], "nan", "error", "expected a Score or a finite"),
        (["math", f"{OWN}:against_the_mean"], ENDLESS, "timeout", "took more"),
    ],
)
def test_a_bad_completion_of_a_batch_costs_only_itself(functions, bad, status, message):
    with pool(*functions, timeout_s=20.0) as rewards:
        scored = rewards.score(["a", "b", bad, "c"], ["1"] * 4)
    assert [result.status for result in scored] == ["ok", "ok", status, "ok"]
    assert message in scored[2].message


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("loop", "timeout", "no score after 2 s"),
        ("sleep", "timeout", "no score after 2 s"),
        ("memory", "error", "out of memory (limit 600 MiB)"),
        ("raise", "error", "KeyError: 'no such thing'"),
        ("exit", "error", "(exit code 3)"),
        ("nan", "error", "expected a Score or a finite number"),
        ("text", "error", "expected a Score or a finite number"),
        ("deep", "error", "RecursionError"),
    ],
)
def test_a_bad_completion_costs_only_itself(text, status, message):
    with pool(f"{OWN}:misbehave") as rewards:
        scored = rewards.score(["a", "b", text, "c", "d"], [None] * 5)
        again = rewards.score(["e"], [None])
    assert [result.status for result in scored] == ["ok", "ok", status, "ok", "ok"]
    assert [result.score.reward for result in scored] == [1.0, 1.0, -7.0, 1.0, 1.0]
    assert message in scored[2].message
    assert (scored[2].score.correct, scored[2].score.parsed) == (False, False)
    assert again[0].score.reward == 1.0


@pytest.mark.parametrize("bad", ["raise", "nan", "huge", "exit"])
def test_a_text_that_breaks_the_scorer_never_earns_more_than_a_wrong_one(bad):
    with pool(f"{OWN_SIGNED}:right_or_wrong") as rewards:
        scored = rewards.score(["right", "wrong", bad, "right"], [None] * 4)
        alone = rewards.score(["right", bad], [None] * 2)
    assert [result.status for result in scored] == ["ok", "ok", "error", "ok"]
    assert [result.score.reward for result in scored] == [1.0, -1.0, -1.0, 1.0]
    assert alone[1].score.reward == 0.0  # the default MINIMUM, as no wrong one is known


def test_a_process_that_was_killed_once_costs_no_completion_its_score(tmp_path):
    texts = [str(tmp_path / f"killed-{place}") for place in range(3)]
    with pool(f"{OWN}:killed_once") as rewards:
        scored = rewards.score(texts, [None] * 3)
        assert [result.score.reward for result in scored] == [1, 1, 1]
        (always,) = rewards.score(["always"], [None])
    assert always.status == "error" and "(exit code -9)" in always.message


def test_values_of_the_data_arrive_as_they_are():
    values = [Decimal("1.50"), datetime.date(2021, 5, 3), b"\xff", {"a": (1,)}]
    with pool(f"{OWN}:types_of_data") as rewards:
        [scored] = rewards.score(["a"], [values[0]], [{"columns": values[1:]}])
    assert list(scored.score.breakdown) == ["Decimal", "date", "bytes", "dict"]


def test_secrets_of_the_environment_are_inherited_only_if_named(monkeypatch):
    secrets = ["MLFLOW_TRACKING_PASSWORD", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "JUDGE_API_KEY"]
    urls = {
        "MLFLOW_TRACKING_URI": "http://me:secret@host:5000/a",
        "PROXY": "http://host:80/a:b@c",
        "HTTPS_PROXY": "http://me:secret@proxy",
    }
    harmless = ["TOKENIZERS_PARALLELISM", "KEYBOARD", "LANG"]
    for name, value in (dict.fromkeys([*secrets, *harmless], "set") | urls).items():
        monkeypatch.setenv(name, value)
    with pool(f"{OWN}:has_variable", environment=["JUDGE_API_KEY", "HTTPS_PROXY"]) as rewards:
        scored = rewards.score([*secrets, *urls, *harmless], [None] * 10)
    assert [result.score.reward for result in scored] == [0, 0, 0, 1, 0, 1, 1, 1, 1, 1]


def test_hostile_formulas_cost_at_most_the_time_limit_each():
    texts = [r"\boxed{9^{9^{9}}}", r"\boxed{\binom{100000}{50000}}", r"\boxed{(a+b+c+d)^{300}}"]
    texts += [r"\boxed{\Gamma(10^{10})}", ENDLESS]
    with pool("math", timeout_s=120.0) as rewards:  # the pool counts what other processes take
        before = workers_alive()
        rewards.score([r"\boxed{6/4}"], ["1.5"])  # the first of its kind takes long
        scored = rewards.score([*texts * 20, r"\boxed{6/4}"], ["3"] * 100 + ["1.5"])
        assert workers_alive() == before
    assert [result.status for result in scored[:5]] == ["ok"] * 4 + ["timeout"]
    assert [result.score.reward for result in scored] == [0.0] * 100 + [1.0]
    lost = [float(result.message.split()[-2]) for result in scored if result.status == "timeout"]
    assert lost == [0.75] * 20


@pytest.mark.parametrize("parts", ["one name", "many"])
def test_a_reply_of_a_hundred_megabytes_or_of_many_parts_is_an_error(parts):
    with pool(f"{OWN}:talkative", timeout_s=30.0, memory_mb=2048) as rewards:
        large, small = rewards.score([parts, "a"], [None] * 2)
    assert (large.status, small.status) == ("error", "ok")
    assert "(limit 1048576)" in large.message


def test_a_function_that_prints_and_reads_stdin_cannot_break_the_protocol():
    with pool(f"{OWN}:shout") as rewards:
        scored = rewards.score(["a"] * 20, [None] * 20)
    assert [result.score.reward for result in scored] == [1.0] * 20


def test_memory_of_earlier_completions_does_not_count_for_the_next():
    with pool(f"{OWN}:hoard", memory_mb=500) as rewards:
        scored = rewards.score(["big", "big", "small", "small"], [None] * 4)
    assert [result.status for result in scored] == ["ok"] * 4


def test_any_text_reaches_the_function_unchanged():
    texts = ["line\nbreak", "nul\x00", "lone \ud800 surrogate", "ü漢🙂", "x" * 300_000, '"}]']
    with pool(f"{OWN}:length") as rewards:
        scored = rewards.score(texts, [None] * len(texts))
    assert [result.score.reward for result in scored] == [len(text) for text in texts]


@pytest.mark.parametrize(
    "function", ["start_daemon_and_hang", "start_daemon_and_die", "start_daemon_and_return"]
)
def test_what_got_away_from_its_session_and_parent_is_ended_too(tmp_path, function):
    note = tmp_path / "pids.json"
    with pool(f"{OWN}:{function}") as rewards:
        (scored,) = rewards.score(["a"], [str(note)])
        daemon = json.loads(note.read_text())["daemon"]
        if function == "start_daemon_and_return":
            assert scored.status == "ok" and psutil.pid_exists(daemon)
        else:
            assert wait_until_gone({daemon}, 5) == set()
    assert wait_until_gone({daemon}, 5) == set()


def test_a_function_that_kills_its_supervisor_leaves_no_child(tmp_path):
    with pool(f"{OWN}:kill_supervisor") as rewards:
        (scored,) = rewards.score(["a"], [str(tmp_path / "pid")])
    assert "(exit code -9)" in scored.message
    assert wait_until_gone({int((tmp_path / "pid").read_text())}, 5) == set()


def test_a_worker_that_goes_on_writing_has_a_deadline():
    with pool(f"{OWN}:trickle", timeout_s=1.0) as rewards:
        begin = time.monotonic()
        slow, next_one = rewards.score(["trickle", "a"], [None] * 2)
        assert time.monotonic() - begin < 20
    assert (slow.status, next_one.status) == ("timeout", "ok")
    assert slow.message.endswith(" 1 s")


def test_what_a_worker_wrote_while_this_process_was_stopped_is_in_time():
    code = """
import os, signal, subprocess, sys
from rewards.sandbox import RewardPool
with RewardPool({"format": 1.0}, timeout_s=2.0, memory_mb=600, workers=1) as rewards:
    rewards.score([""], [""])
    wake = f"sleep 0.01; kill -STOP {os.getpid()}; sleep 3.5; kill -CONT {os.getpid()}"
    for _ in range(3):
        waker = subprocess.Popen(["sh", "-c", wake])
        while waker.poll() is None:
            assert {scored.status for scored in rewards.score(["x"] * 500, [""] * 500)} == {"ok"}
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120).returncode == 0


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("handler", [signal.default_int_handler, interrupt])
def test_an_interrupted_call_leaves_nothing_for_the_next(handler):
    before = signal.signal(signal.SIGINT, handler)
    with (
        contextlib.ExitStack() as at_end,
        pool(f"{OWN}:misbehave", workers=2, timeout_s=30.0) as rewards,
    ):
        at_end.callback(signal.signal, signal.SIGINT, before)
        # to the main thread, as from a terminal: a signal to another one does not end its waiting
        main_thread = threading.main_thread().ident
        threading.Timer(0.5, signal.pthread_kill, (main_thread, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            rewards.score(["a", "sleep", "b"], [None] * 3)
        assert [scored.status for scored in rewards.score(["a", "nan"], [None] * 2)] == [
            "ok",
            "error",
        ]


@pytest.mark.parametrize("text", ["half", "forged", "many", "binary"])
def test_bytes_on_the_reply_descriptor_are_no_scores(text):
    with pool(f"{OWN}:write_everywhere") as rewards:
        scored = rewards.score(["a", text, "b"], [None] * 3)
    assert [result.status for result in scored] == ["ok", "error", "ok"]
    assert [result.score.reward for result in scored] == [1.0, -7.0, 1.0]
    assert "reply" in scored[1].message


def test_scoring_ends_as_soon_as_too_much_of_it_fails():
    with pool(f"{OWN}:misbehave", timeout_s=0.3, max_failure_rate=0.1) as rewards:
        with pytest.raises(ScoringFailedError, match=r"4 of 30 .*10%.* 0\.3 s"):
            rewards.score(["sleep"] * 30, [None] * 30)
        scored = rewards.score(["a"] * 28 + ["raise"] * 2, [None] * 30)
        assert [result.status for result in scored].count("error") == 2


def test_the_number_of_processes_stays_and_none_is_left_after_close():
    before = workers_alive(recursive=True)
    rewards = pool(f"{OWN}:misbehave", workers=2, timeout_s=1.0)
    first = workers_alive() - before
    assert len(first) == 2
    scored = rewards.score(["loop", "exit", "a", "sleep"], [None] * 4)
    assert [result.status for result in scored] == ["timeout", "error", "ok", "timeout"]
    second = workers_alive() - before
    assert len(second) == 2 and second != first
    rewards.close()
    assert workers_alive(recursive=True) == before
    with pytest.raises(PoolClosedError):
        rewards.score(["a"], [None])


def test_an_unknown_reward_is_refused_at_the_start_and_leaves_no_process():
    before = workers_alive(recursive=True)
    with pytest.raises(ValueError, match=r"own_rewards\.py.* nothing"):
        pool(f"{OWN}:nothing")
    assert workers_alive(recursive=True) == before


def test_scoring_works_where_an_event_loop_runs_as_in_a_notebook():
    async def cell():
        with pool("format") as rewards:
            return rewards.score(["a"], [None])

    assert [result.status for result in asyncio.run(cell())] == ["ok"]


def test_own_modules_are_found_where_the_user_stands(tmp_path, monkeypatch):
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "__init__.py").write_text("raise RuntimeError('the wrong package')\n")
    (tmp_path / "my_reward.py").write_text("def half(text, answer):\n    return 0.5\n")
    monkeypatch.chdir(tmp_path)
    with pool("my_reward:half") as rewards:
        assert rewards.score(["a"], [None])[0].score.reward == 0.5


def test_imports_do_not_count_against_the_memory_limit(tmp_path, monkeypatch):
    (tmp_path / "heavy_reward.py").write_text(
        "taken = bytearray(400 << 20)\n\n\n"
        "def score(text, answer):\n"
        "    return float(len(bytearray(answer << 20)) > 0)\n"
    )
    monkeypatch.chdir(tmp_path)
    with pool("heavy_reward:score", memory_mb=200) as rewards:
        small, large = rewards.score(["a", "b"], [100, 300])
    assert (small.status, small.score.reward) == ("ok", 1.0)
    assert large.status == "error" and "200 MiB" in large.message


def test_a_module_that_ends_the_process_at_its_import_is_said(tmp_path, monkeypatch):
    (tmp_path / "dying_reward.py").write_text("import os\n\nos._exit(3)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match=r"\(exit code 3\).*dying_reward:score"):
        pool("dying_reward:score")


@pytest.mark.parametrize(
    "function", ["format", f"{OWN}:hang_in_native_code", f"{OWN}:hang_and_stop_the_alarm"]
)
def test_workers_end_when_their_parent_is_killed(tmp_path, function):
    note = tmp_path / "pids.json"
    code = f"""
import json, os, sys
from rewards.sandbox import PoolClosedError, RewardPool, ScoringFailedError
rewards = RewardPool({{{function!r}: 1.0}}, timeout_s=60, memory_mb=600, workers=2)
print("ready", *(worker.process.pid for worker in rewards._workers.values()), flush=True)
rewards.score(["a"], [{str(note)!r}])
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    ready, *pids = parent.stdout.readline().split()
    assert ready == "ready"
    workers = {int(pid) for pid in pids}
    if function != "format":
        end = time.monotonic() + 60
        while not (note.exists() and note.read_text()) and time.monotonic() < end:
            time.sleep(0.02)
        scoring = json.loads(note.read_text())["worker"]
        assert psutil.Process(scoring).ppid() in workers
        workers.add(scoring)
    assert all(psutil.pid_exists(pid) for pid in workers)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    # three seconds of CPU time may take a busy machine long
    assert wait_until_gone(workers, 40) == set()
