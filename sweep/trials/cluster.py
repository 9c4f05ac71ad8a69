"""Starting Ray for a sweep: the resources of machine or cluster, and whether a trial fits."""

import contextlib
import functools
import logging
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from rewards.own import OWN_PACKAGES
from sweep.space.spec import ResourcesSpec
from sweep.trials.address import check_cluster, warn_if_open
from sweep.trials.credentials import plain_environment
from trainer.errors import MissingError
from trainer.parallel.gpus import visible_gpus
from trainer.shell.table import counted

_OBJECT_STORE_BYTES = 200 * 2**20  # results are small dicts; Ray would take 30 % of the memory

_ENVIRONMENT = {
    "AIR_VERBOSITY": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A relative path in a configuration means the folder the sweep was started in.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_prestart_worker_first_driver": "0",  # processes that wait for tasks: a sweep has only actors
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Tune would write and hold all it knows of every trial, again and again; a restart is built from the ledger.
    "TUNE_GLOBAL_CHECKPOINT_S": "1e9",
    # A diverged trial reports no score.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_RESULT_BUFFER_LENGTH": "1",
}


@dataclass(frozen=True)
class Node:
    """CPUs, GPUs and memory of one machine."""

    cpus: float
    gpus: float
    memory: int | None = field(default=None, compare=False)  # bytes; None where it is not known


def local_node(cpus: int | None = None) -> Node:
    """The machine this runs on, without asking Ray (which takes seconds to import)."""
    return Node(cpus or _usable_cpus(), visible_gpus(), psutil.virtual_memory().total)


def slots(resources: ResourcesSpec, nodes: list[Node]) -> int:
    """Trials that fit on the nodes at one time: each on one node, or over several if no node holds a whole trial."""
    by_node = [_workers_on(resources, node) for node in nodes]
    workers = resources.workers_per_trial
    if spreads(resources, nodes):
        return sum(by_node) // workers
    return sum(fitting // workers for fitting in by_node)


def spreads(resources: ResourcesSpec, nodes: list[Node]) -> bool:
    """Return whether the workers of a trial run on several nodes, because no node holds all of them."""
    return max(_workers_on(resources, node) for node in nodes) < resources.workers_per_trial


def check_fit(resources: ResourcesSpec, nodes: list[Node]) -> None:
    """Refuse a trial that could never start.

    Raises:
        MissingError: names the needs of a trial and the resources present.
    """
    if slots(resources, nodes) > 0:
        return
    cpus = resources.workers_per_trial * resources.cpus_per_worker
    total = Node(sum(node.cpus for node in nodes), sum(node.gpus for node in nodes))
    where = "" if len(nodes) == 1 else f" on {len(nodes)} nodes"
    raise MissingError(
        f"a trial needs {counted(resources.gpus_per_trial, 'GPU')} and {counted(cpus, 'CPU')}; present: "
        f"{node_text(total)}{where}",
        "resources.gpus_per_trial" if resources.gpus_per_trial > total.gpus else "resources.workers_per_trial",
        "lower resources, or name a cluster with --address",
    )


def prepare_environment(address: str | None) -> None:
    """Set the variables that Ray reads, some of them already while it is imported: call it before that.

    A cluster, at an address, has its own token; None starts a Ray of this process.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if address is not None:
        # Attempts to connect, one a second; a Ray that has only just been started here may need more.
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "5")
    elif "ray" not in sys.modules:
        # Where Ray is told that it makes no cluster it listens on the loopback address alone.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        if "RAY_AUTH_MODE" not in os.environ:
            # Ray would otherwise make up a token and write it into the user's home folder.
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def start_ray(address: str | None, cpus: int | None, log: Path) -> list[Node]:
    """Start Ray on this machine, or connect to a cluster, and return its nodes.

    Ray's own messages go to ``log``: its warnings about itself would bury the sweep's lines.

    Raises:
        MissingError: no cluster at that address.
    """
    prepare_environment(address)
    import ray
    from ray._private import services

    log.parent.mkdir(parents=True, exist_ok=True)
    _send_logs_to(log)
    if address is None:
        node = local_node(cpus)
        with _few_daemons_in_their_own_groups():
            ray.init(
                address="local",
                num_cpus=int(node.cpus),
                num_gpus=int(node.gpus),
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=_OBJECT_STORE_BYTES,
            )
        return [node]
    try:
        host, _, port = str(services.canonicalize_bootstrap_address(address)).rpartition(":")
        if port.isdecimal():
            check_cluster(host, int(port))  # the cluster that `auto` means may be gone
            warn_if_open(host, int(port))
        packages = [str(Path(__file__).resolve().parents[2] / name) for name in OWN_PACKAGES]
        with _stderr_to(log):
            ray.init(
                address=address,
                log_to_driver=False,
                configure_logging=False,
                runtime_env={"env_vars": plain_environment(), "py_modules": packages},
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise MissingError(
            f"no Ray cluster at {address}: {error}", "--address", "start one with `ray start --head`"
        ) from error
    return present_nodes()


def present_nodes() -> list[Node]:
    """The nodes of the cluster that this process is connected to."""
    import ray

    present = [found["Resources"] for found in ray.nodes() if found["Alive"]]
    return [
        Node(node["CPU"], node.get("GPU", 0), int(node.get("memory", 0)) or None)
        for node in present
        if node.get("CPU")
    ] or [Node(0, 0)]


def cluster_nodes(address: str) -> list[Node]:
    """The nodes of a running cluster.

    Raises:
        MissingError: no cluster at that address.
    """
    with tempfile.TemporaryDirectory() as folder:
        nodes = start_ray(address, None, Path(folder, "ray.log"))
    import ray

    ray.shutdown()
    return nodes


@contextlib.contextmanager
def _few_daemons_in_their_own_groups() -> Iterator[None]:
    """Start what Ray starts outside of this process's group, without autoscaler, log monitor and dashboard.

    A SIGTERM for the whole group (`timeout`, a job's end) asks this process to stop orderly. Ray shields its
    processes from a SIGINT alone: the signal would end it, and without it no trial can save a checkpoint.
    """
    from ray._private import parameter, services

    popen, params, dashboard = services.ConsolePopen, parameter.RayParams, services.start_api_server
    services.ConsolePopen = functools.partial(popen, process_group=0)
    parameter.RayParams = functools.partial(params, no_monitor=True, include_log_monitor=False)
    services.start_api_server = lambda *_, **__: ("", None)
    try:
        yield
    finally:
        services.ConsolePopen, parameter.RayParams, services.start_api_server = popen, params, dashboard


@contextlib.contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Send what Ray's own core writes to standard error into a file: no setting of Ray keeps it back."""
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _workers_on(resources: ResourcesSpec, node: Node) -> int:
    by_cpu = node.cpus // resources.cpus_per_worker
    return int(min(by_cpu, node.gpus // resources.gpus_per_worker if resources.gpus_per_worker else by_cpu))


def node_text(node: Node) -> str:
    """GPUs and CPUs of a machine in words."""
    return f"{counted(node.gpus, 'GPU')} and {counted(node.cpus, 'CPU')}"


def _usable_cpus() -> int:
    cpus = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError, ValueError):  # a container's share
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cpus = min(cpus, max(1, int(quota) // int(period)))
    return cpus


def _send_logs_to(path: Path) -> None:
    logging.raiseExceptions = False  # a log that cannot be written is no page of tracebacks for every line
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("ray", "ray.tune", "ray.train", "ray.data", "ray.serve", "ray.rllib", "sweep"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO)
