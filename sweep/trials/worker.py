"""The processes of one trial: one rank actor per worker, and the group that manages them.

Nothing here imports torch before the environment of the rank is set: OMP_NUM_THREADS,
CUDA_VISIBLE_DEVICES and the rendezvous variables are read while torch and its libraries are
imported.
"""

import gc
import logging
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from dashboards.statistics.scoring import Scoring, Values
from loptune.errors import one_line
from loptune.files import Record, read_records
from sweep.programs.base import Assignment, RunnableProgram, SecondObjective, TrialRun
from sweep.search.trial_report import TrialReport
from sweep.trials.credentials import take_credentials
from sweep.trials.limits import with_limits
from sweep.trials.nodes import (
    NodeLostError,
    WorkerLostError,
    exit_when_disconnected,
    is_lost_node,
    leave_if_files_missing,
)
from trainer.parallel.gpus import GPU_FRACTION_VARIABLE
from trainer.policy.cache import cache_folder, exclusive_folder
from trainer.run_folder import RunFolder
from trainer.threads import spin_variables
from trainer.types import RunContext

logger = logging.getLogger(__name__)

_AS_USUAL = 2_000  # allocations between two garbage collections; Python's default is 700 or 2,000

VLLM_CACHE = "VLLM_CACHE_ROOT"
START_TIMEOUT_S = 300.0
POLL_S = 2.0
# seconds for Ray to report a rank's death after another rank noticed it; well below 1 s on an idle
# machine
_DEATH_NOTICE_S = 3.0


class RankWorker:
    """One rank of a trial. It is reused when the next trial gets the same placement group."""

    def __init__(self) -> None:
        self._run: TrialRun | None = None
        self._context: RunContext | None = None
        self._scoring: Scoring | None = None
        self._second: SecondObjective | None = None
        self._port = reserve_port()

    def describe(self) -> dict[str, Any]:
        """Return this rank's node, address, reserved port, process id, GPUs and cores per GPU."""
        context = ray.get_runtime_context()
        exit_when_disconnected(context.gcs_address)
        return {
            "node": context.get_node_id(),
            "address": ray.util.get_node_ip_address(),
            "port": self._port.getsockname()[1],
            "pid": os.getpid(),
            "gpus": context.get_accelerator_ids().get("GPU", []),
            "cores": _cores_per_gpu(context.get_node_id()),
        }

    def set_environment(self, environment: Mapping[str, str], shares_gpu: bool) -> None:
        """Set the variables that torch and its libraries read while they are imported. If the rank
        shares its GPU with other ranks, it gets a vLLM cache of its own.
        """
        assert "torch" not in sys.modules, "the environment must be set before torch is imported"
        os.environ.update(environment)
        if shares_gpu:
            os.environ[VLLM_CACHE] = str(exclusive_folder(Path(environment[VLLM_CACHE])))

    def build(self, program: RunnableProgram, assignment: Assignment) -> int:
        """Start the trial, or resume from its folder, and return the step.

        Raises:
            NodeLostError: the node does not see one of the trial's inputs.
            Exception: the unchanged exception of the program.
        """
        leave_if_files_missing(assignment.inputs)
        with RunFolder(assignment.context.run_dir).stderr.open("ab") as log:
            os.dup2(log.fileno(), 2)
        self.close("KILLED")
        if assignment.working_dir.is_dir():  # may not exist on a cluster node
            os.chdir(assignment.working_dir)
        take_credentials(assignment.credentials)
        started = time.monotonic()
        self._context = assignment.context
        self._scoring = assignment.scored_by
        self._second = assignment.second
        self._run = program.start(assignment)
        gc.set_threshold(_AS_USUAL)  # everything is imported; see `prepare_worker`
        step = self._run.resume()
        rank = os.environ.get("RANK", "0")
        seconds = time.monotonic() - started
        print(
            f"rank {rank}: process {os.getpid()}, ready at step {step} after {seconds:.1f} s",
            file=sys.stderr,
        )
        return step

    def train_until_evaluation(self) -> TrialReport:
        """Train to the next evaluation, or to the next training step if the sweep should stop.

        Returns:
            The report of the trial; only rank 0, which keeps the record, adds the score.

        Raises:
            DivergedError: see `TrialReport.scored`.
            ProgramError: see `TrialReport.scored`; or the finished trial has no value of the second
                objective.
            Exception: the unchanged exception of the program.
        """
        run = self._run
        context = self._context
        scoring = self._scoring
        assert run is not None and context is not None and scoring is not None, (
            "build() was not called"
        )
        measured: Mapping[str, float] = {}
        # The run may be done already, if it was stopped after its last step but before it could
        # report that step.
        if not run.done:
            measured = run.train_until_evaluation()
        evaluated = any(name != "step" for name in measured)
        metrics = {}
        for name, value in measured.items():
            if name.startswith("eval/"):
                metrics[name] = float(value)
        report = TrialReport(
            step=run.step,
            total_steps=run.total_steps,
            finished=run.done,
            stopped=run.stopped and not run.done and not evaluated,
            metrics=metrics,
        )
        if report.stopped or os.environ.get("RANK", "0") != "0":
            return report
        values: Values = {context.metric: run.history}
        records: list[Record] = []
        if self._second is not None or not scoring.is_plain:
            records = read_records(RunFolder(context.run_dir).metrics)
        if not scoring.is_plain:
            values = scoring.values(records)
        scored = report.scored(scoring, values)
        if self._second is None:
            return scored
        second = self._second.value(records)
        if scored.finished:
            self._second.check(second)
        return replace(scored, second=second if math.isfinite(second) else None)

    def close(self, status: str) -> None:
        """End the trial's run; the process stays."""
        run = self._run
        self._run = None
        if run is not None:
            run.close(status)

    def ping(self) -> int:
        """Return the process id; the call raises if the process has exited."""
        return os.getpid()


class WorkerGroup:
    """The ranks of a trial: started, called and ended together.

    Args:
        group: resources of the trial; the ranks take its last bundles, one each.
        workers: number of ranks.
        cpus: CPU cores per rank.
        gpus: GPUs per rank; below 1: a fraction of one GPU.
    """

    def __init__(self, group: PlacementGroup, workers: int, cpus: float, gpus: float) -> None:
        bundles = group.bundle_count
        assert bundles >= workers, f"{bundles} bundles for {workers} workers"
        actor = ray.remote(RankWorker)
        self._ranks = []
        for bundle in range(bundles - workers, bundles):
            options = actor.options(
                num_cpus=cpus,
                num_gpus=gpus,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=bundle
                ),
            )
            self._ranks.append(options.remote())
        locations = self.call("describe", timeout=START_TIMEOUT_S)
        self.pids = [location["pid"] for location in locations]
        environments = rank_environments(locations, max(1, math.floor(cpus)), gpus)
        shares_gpu = 0 < gpus < 1
        answers = []
        for rank, environment in zip(self._ranks, environments, strict=True):
            answers.append(rank.set_environment.remote(environment, shares_gpu))
        self.gather(answers, START_TIMEOUT_S)

    def call(
        self,
        method: str,
        *arguments: Any,
        timeout: float = START_TIMEOUT_S,
        progress: Callable[[], object] = lambda: None,
    ) -> list[Any]:
        """Call a method of ``RankWorker`` on every rank and return the answers in rank order.

        The group counts as hung after ``timeout`` seconds without an answer and without a change in
        ``progress()``.

        Raises:
            WorkerLostError: a rank died or hung; the other ranks may still be waiting for it.
            Exception: the unchanged exception of the method on a rank.
        """
        return self.gather(
            [getattr(rank, method).remote(*arguments) for rank in self._ranks], timeout, progress
        )

    def gather(
        self,
        futures: Sequence[ray.ObjectRef],
        timeout: float,
        progress: Callable[[], object] = lambda: None,
    ) -> list[Any]:
        """Return the results of all ranks, in the order of the ranks.

        Raises:
            WorkerLostError: a rank died, or made no ``progress`` for ``timeout`` seconds.
            Exception: the unchanged exception of a rank.
        """
        seen = progress()
        moved = time.monotonic()  # not the wall clock, which may jump
        pending = list(futures)
        while pending:
            # Wait for one rank at a time, so that a dead rank is noticed while others wait for it
            # in a collective.
            ready, pending = ray.wait(pending, num_returns=1, timeout=POLL_S)
            for future in ready:
                try:
                    result_of(future, futures.index(future))
                except WorkerLostError:
                    raise
                except Exception:
                    self._raise_if_rank_died(futures, pending)
                    raise
            if (now := progress()) != seen:
                seen = now
                moved = time.monotonic()
            idle = time.monotonic() - moved
            if not ready and idle > timeout:
                hung = [futures.index(future) for future in pending]
                raise WorkerLostError(
                    f"rank {', '.join(map(str, hung))} did not answer for {idle:.0f} s"
                )
        return [result_of(future, rank) for rank, future in enumerate(futures)]

    def _raise_if_rank_died(
        self, futures: Sequence[ray.ObjectRef], pending: Sequence[ray.ObjectRef]
    ) -> None:
        """Raise ``WorkerLostError`` if one of the other ranks turns out to be dead.

        When a rank dies in a collective, the others often fail first with a closed connection.
        Report the dead rank instead.
        """
        deadline = time.monotonic() + _DEATH_NOTICE_S
        waiting = list(pending)
        while waiting and (left := deadline - time.monotonic()) > 0:
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=left)
            for future in ready:
                try:
                    result_of(future, futures.index(future))
                except WorkerLostError:
                    raise
                except Exception:  # another consequence, or the same error as the first rank's
                    logger.debug("rank %d failed too", futures.index(future), exc_info=True)

    def kill(self, timeout: float = 10.0) -> None:
        """Kill every rank, and wait until Ray has detected it."""
        for rank in self._ranks:
            ray.kill(rank, no_restart=True)
        ray.wait(
            [rank.ping.remote() for rank in self._ranks],
            num_returns=len(self._ranks),
            timeout=timeout,
        )


def _cores_per_gpu(node_id: str) -> float:
    """Return a node's cores per GPU; 0 without GPUs."""
    [of_node] = [node["Resources"] for node in ray.nodes() if node["NodeID"] == node_id]
    if "GPU" not in of_node:
        return 0.0
    return float(of_node.get("CPU", 0) / of_node["GPU"])


def rank_environments(
    locations: Sequence[Mapping[str, Any]], threads: int, gpus: float
) -> list[dict[str, str]]:
    """Return the rendezvous and device variables of each rank, from the results of
    ``RankWorker.describe``.

    ``threads`` and ``gpus`` are the reserved cores and GPUs of one rank. A rank with a GPU gets at
    least the node's cores per GPU. A CPU-offloaded AdamW runs on them, and no other trial can use
    them while this trial has the GPU.

    Ranks that are all on one node meet on its loopback address. Ranks on one node see all GPUs of
    the trial on that node, so that LOCAL_RANK picks one and peer-to-peer transfers work.
    """
    environments: list[dict[str, str]] = []
    ranks_of_node: dict[str, list[int]] = {}
    for rank, location in enumerate(locations):
        ranks_of_node.setdefault(location["node"], []).append(rank)
    master_address = str(locations[0]["address"])
    if len(ranks_of_node) == 1:
        master_address = "127.0.0.1"
    for rank, location in enumerate(locations):
        neighbors = ranks_of_node[location["node"]]
        environment = {
            "MASTER_ADDR": master_address,
            "MASTER_PORT": str(locations[0]["port"]),
            "RANK": str(rank),
            "WORLD_SIZE": str(len(locations)),
            "LOCAL_RANK": str(neighbors.index(rank)),
            "LOCAL_WORLD_SIZE": str(len(neighbors)),
            "OMP_NUM_THREADS": str(max(threads, math.floor(gpus * location["cores"]))),
            "TOKENIZERS_PARALLELISM": "false",
            **spin_variables(os.environ),
        }
        visible: list[str] = []
        for neighbor in neighbors:
            visible += map(str, locations[neighbor]["gpus"])
        # empty: a trial without GPUs must not use other trials' GPUs
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(visible)
        # one compile cache per set of GPUs: concurrent trials do not share it, and the next trial
        # on these GPUs reuses it
        if visible:
            caches = Path(os.environ.get(VLLM_CACHE) or cache_folder() / "vllm")
            gpus_of_node = f"{location['address']}-gpu-{'-'.join(visible)}"
            environment[VLLM_CACHE] = str(caches / gpus_of_node)
            environment[GPU_FRACTION_VARIABLE] = str(float(gpus))
        environments.append(environment)
    return environments


def result_of(future: ray.ObjectRef, rank: int) -> Any:
    """Return a rank's result, or raise its own exception.

    Raises:
        WorkerLostError: the rank died; the error names memory, the node or Ray's reason.
    """
    try:
        return ray.get(future)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.OutOfMemoryError as error:
        raise WorkerLostError(f"rank {rank} ran out of memory: {one_line(error)}") from error
    except ray.exceptions.RayError as error:
        lost = NodeLostError if is_lost_node(error) else WorkerLostError
        raise lost(with_limits(f"rank {rank} died: {one_line(error)}")) from error


def reserve_port() -> socket.socket:
    """Return a bound socket. While it is open, the system does not hand out its port as a free one.

    The socket does not listen and allows address reuse, so torch can listen on the port later
    although this socket is bound to it.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    return reserved
