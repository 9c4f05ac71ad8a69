"""The ranks of a trial: where they meet, and what becomes of the others when one fails."""

import contextlib
import json
import math
import socket
import time
from pathlib import Path

import pytest
import ray

from dashboards.statistics.scoring import Scoring
from sweep.space.scoring import Second
from sweep.trials import worker
from sweep.trials.worker import (
    RankWorker,
    WorkerGroup,
    WorkerLostError,
    rank_environments,
    reserve_port,
)
from tests.refusals import refused
from trainer.run_folder import RunFolder
from trainer.threads import SPIN_COUNT
from trainer.types import RunContext


def place(node, gpus, port=1000):
    here = {"node": node, "address": f"10.0.0.{node}", "port": port, "pid": 1, "gpus": gpus}
    return here | {"cores": 16.0 if gpus else 0.0}


def test_ranks_share_the_rendezvous_of_rank_0_and_the_gpus_of_their_node():
    places = [place("1", [4], 1111), place("1", [6]), place("2", [0]), place("1", [7])]
    environments = rank_environments(places, threads=3, gpus=1)
    assert [e["RANK"] for e in environments] == ["0", "1", "2", "3"]
    assert [e["LOCAL_RANK"] for e in environments] == ["0", "1", "0", "2"]
    assert [e["LOCAL_WORLD_SIZE"] for e in environments] == ["3", "3", "1", "3"]
    assert [e["CUDA_VISIBLE_DEVICES"] for e in environments] == ["4,6,7", "4,6,7", "0", "4,6,7"]
    assert {(e["MASTER_ADDR"], e["MASTER_PORT"], e["WORLD_SIZE"]) for e in environments} == {
        ("10.0.0.1", "1111", "4")
    }
    # of a node with 16 cores for each GPU
    assert {e["OMP_NUM_THREADS"] for e in environments} == {"16"}
    caches = [Path(e["VLLM_CACHE_ROOT"]).name for e in environments]
    of_node = "10.0.0.1-gpu-4-6-7"  # machines may share the folder
    assert caches == [of_node, of_node, "10.0.0.2-gpu-0", of_node]


def test_ranks_of_one_node_use_loopback_and_see_only_their_gpus():
    environments = rank_environments([place("1", [], 1111), place("1", [])], 1, 0)
    assert {(e["MASTER_ADDR"], e["MASTER_PORT"]) for e in environments} == {("127.0.0.1", "1111")}
    assert {e["CUDA_VISIBLE_DEVICES"] for e in environments} == {""}


@pytest.mark.parametrize(
    ("gpus", "threads", "expected"), [(1, 20, "20"), (0.5, 3, "8"), (0.1, 3, "3"), (0, 3, "3")]
)
def test_a_rank_has_the_cores_it_reserved_or_those_of_its_share_of_a_gpu(gpus, threads, expected):
    places = [place("1", [4] if gpus else [])]
    [environment] = rank_environments(places, threads, gpus)
    assert environment["OMP_NUM_THREADS"] == expected
    assert environment.get("LOPTUNE_GPU_FRACTION") == (str(float(gpus)) if gpus else None)


@pytest.mark.parametrize(("theirs", "expected"), [(None, str(SPIN_COUNT)), ("7", None)])
def test_threads_of_ranks_spin_briefly_unless_the_user_decides(monkeypatch, theirs, expected):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if theirs:
        monkeypatch.setenv("GOMP_SPINCOUNT", theirs)
    [environment] = rank_environments([place("1", [])], 2, 0)
    assert environment.get("GOMP_SPINCOUNT") == expected  # None: inherited


def test_a_reserved_port_is_open_to_torch_and_to_nobody_who_asks_for_any():
    from torch.distributed import TCPStore

    with contextlib.ExitStack() as open_sockets:
        reserved = [open_sockets.enter_context(reserve_port()) for _ in range(300)]
        ports = {held.getsockname()[1] for held in reserved}
        assert len(ports) == 300
        for _ in range(300):
            other = open_sockets.enter_context(socket.socket())
            other.bind(("", 0))
            assert other.getsockname()[1] not in ports
        server = TCPStore("127.0.0.1", min(ports), is_master=True, wait_for_workers=False)
        TCPStore("127.0.0.1", min(ports), is_master=False).set("key", "value")
        assert server.get("key") == b"value"


def test_a_jump_of_the_clock_is_no_stall(monkeypatch):
    """The system's clock is set ten hours on while a rank works; then the trial stops moving in
    earnest.
    """
    group = object.__new__(WorkerGroup)
    clock = iter(range(0, 10**9, 36_000))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    waits = []

    def wait(pending, num_returns, timeout):
        waits.append(time.monotonic())
        time.sleep(0.02)
        return ([], pending) if len(waits) < 10 else (pending, [])

    monkeypatch.setattr("sweep.trials.worker.ray.wait", wait)
    monkeypatch.setattr("sweep.trials.worker.result_of", lambda future, rank: future)
    assert group.gather(["answer"], timeout=5.0) == ["answer"]

    waits.clear()
    with pytest.raises(WorkerLostError, match=r"rank 0\b"):
        group.gather(["answer"], timeout=0.05)
    waits.clear()
    steps = iter(range(100))
    assert group.gather(["answer"], timeout=0.15, progress=lambda: next(steps)) == ["answer"]


def test_a_rank_that_ray_ends_for_memory_is_told_with_the_numbers(monkeypatch):
    def get(future):
        raise ray.exceptions.OutOfMemoryError(
            "killed, the node was low on memory:\n22.1GB / 23.2GB were used"
        )

    monkeypatch.setattr(worker.ray, "get", get)
    with pytest.raises(WorkerLostError, match=r"rank 1\b.*22\.1GB / 23\.2GB"):
        worker.result_of(None, 1)


class Run:
    """A trial that has evaluated once more; ``history`` is what its rank has recorded."""

    stopped = False
    total_steps = 4

    def __init__(self, history, done=False):
        self.history = history
        self.done = done
        self.step = 2

    def train_until_evaluation(self):
        return {"step": 2.0, "eval/accuracy": 0.5, "rollout/reward": 1.0}


@pytest.mark.parametrize(
    ("rank", "history", "done", "score"),
    [
        ("0", {0: 0.1, 1: 0.4, 2: 0.5}, False, 0.45),
        ("1", {}, False, None),  # keeps no record, and has not diverged
        ("1", {}, True, None),
        ("0", {1: 0.4, 2: math.nan}, False, None),
    ],
)
def test_the_rank_that_keeps_the_record_reports_the_score(
    rank, history, done, score, monkeypatch, tmp_path
):
    monkeypatch.setenv("RANK", rank)
    worker = object.__new__(RankWorker)
    worker._run = Run(history, done)
    worker._context = RunContext(tmp_path, tmp_path, "e", "n")
    worker._scoring = Scoring(("eval/accuracy",), window=2)
    worker._second = None
    report = worker.train_until_evaluation()
    assert report.score == (None if score is None else pytest.approx(score))
    assert (report.step, report.total_steps, report.finished) == (2, 4, done)
    assert report.metrics == ({} if done else {"eval/accuracy": 0.5})


@pytest.mark.parametrize(("hours", "second"), [(2.0, 6.0), (None, None)])
def test_the_rank_that_keeps_the_record_reports_the_second_objective(
    hours, second, monkeypatch, tmp_path
):
    monkeypatch.setenv("RANK", "0")
    lines = [{"step": step, "hours": hours, "eval/accuracy": 0.5} for step in (1, 2)]
    lines[-1]["hours"] = hours and 3 * hours
    text = "".join(json.dumps(line) + "\n" for line in lines)
    RunFolder(tmp_path).metrics.write_text(text)
    worker = object.__new__(RankWorker)
    worker._run = Run({1: 0.5, 2: 0.5}, done=second is None)
    worker._context = RunContext(tmp_path, tmp_path, "e", "n")
    worker._scoring = Scoring(("eval/accuracy",), window=1)
    worker._second = Second("hours", worker._scoring)
    if second is None:  # finished without a value
        with refused("metric-not-logged"):
            worker.train_until_evaluation()
        return
    assert worker.train_until_evaluation().second == second
