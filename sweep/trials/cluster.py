"""Start Ray or connect to it, and check that a trial fits on the machine or cluster."""

import ipaddress
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from loptune.errors import ConfigError, MissingError
from loptune.section import LARGEST_PORT
from loptune.shadowing import LOPTUNE_PACKAGES
from loptune.temporary import temporary_folder
from loptune.terminal.logs import verbose_handlers
from loptune.terminal.table import counted
from sweep.programs.base import ResourcesSpec
from sweep.programs.environment import set_for_sweep
from sweep.space.spec import SweepSpec
from sweep.trials.credentials import plain_environment
from sweep.trials.internals import (
    ON_LOOPBACK,
    RAY,
    SETUP_HOOK,
    SETUP_HOOK_VARIABLE,
    accepts_without_token,
    bootstrap_address,
    log_errors,
    reload_environment,
)
from trainer.parallel.gpus import visible_gpus

_START_LIMIT_S = 300.0
ANSWER_LIMIT_S = 5.0

# HTTP/2 client preface (RFC 9113, section 3.4), followed by an empty SETTINGS frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
_SETTINGS_FRAME = 4  # type of the first frame that an HTTP/2 server, such as gRPC's, sends
_GPU_UNITS = 10_000  # units into which Ray divides a GPU
_OBJECT_STORE_BYTES = 200 * 2**20  # results are small dicts; Ray would take 30% of the memory

# Documented settings of Ray and Tune without an API argument.
_ENVIRONMENT = {
    # Ray's new output prints a table even with verbose=0
    "RAY_AIR_NEW_OUTPUT": "0",
    # Relative paths in a configuration refer to the folder in which the sweep was started.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Tune would repeatedly checkpoint its whole state; a resume is built from the event log.
    "TUNE_GLOBAL_CHECKPOINT_S": "1e9",
    # A diverged trial reports no score.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
}


@dataclass(frozen=True)
class Node:
    """CPUs, GPUs and memory of one machine."""

    cpus: float
    gpus: float
    memory: int | None = field(default=None, compare=False)  # bytes; None if unknown


def local_node(cpus: int | None = None) -> Node:
    """Return this machine's resources without importing Ray, which takes seconds."""
    return Node(cpus or _usable_cpus(), visible_gpus(), psutil.virtual_memory().total)


def slots(resources: ResourcesSpec, nodes: list[Node]) -> int:
    """Count the trials that can run concurrently: each on one node, or across nodes if no node has
    enough resources for a trial.
    """
    by_node = [_workers_on(resources, node) for node in nodes]
    workers = resources.workers_per_trial
    return sum(fitting // workers for fitting in by_node) or sum(by_node) // workers


def concurrent_trials(spec: SweepSpec, nodes: list[Node]) -> int:
    """Count the trials of a sweep that run at the same time: as many as fit, up to
    ``limits.max_concurrent``.
    """
    fitting = slots(spec.resources, nodes)
    return min(fitting, spec.limits.max_concurrent or fitting)


def spans_nodes(resources: ResourcesSpec, nodes: list[Node]) -> bool:
    """Return whether a trial's workers run on several nodes, because no node has enough resources
    for all.
    """
    return max(_workers_on(resources, node) for node in nodes) < resources.workers_per_trial


def check_fit(resources: ResourcesSpec, nodes: list[Node]) -> None:
    """Reject a trial that could never start.

    Raises:
        MissingError: the resources do not suffice; the error lists the required and the available
            resources.
    """
    if slots(resources, nodes) > 0:
        return
    cpus = resources.cpus_per_trial
    total = Node(sum(node.cpus for node in nodes), sum(node.gpus for node in nodes))
    on_nodes = "" if len(nodes) == 1 else f" on {len(nodes)} nodes"
    fitting = ""
    key = "resources.workers_per_trial"
    if resources.gpus_per_trial > total.gpus:
        key = "resources.gpus_per_trial"
    elif cpus <= total.cpus:
        # the totals suffice, but a worker runs on one node, and on one GPU or on whole GPUs
        workers = sum(_workers_on(resources, node) for node in nodes)
        fitting = f", which fit {workers} of its {resources.workers_per_trial} workers"
    raise MissingError(
        f"a trial needs {counted(resources.gpus_per_trial, 'GPU')} and {counted(cpus, 'CPU')}; "
        f"available: {node_text(total)}{on_nodes}{fitting}",
        key,
        "reduce the resources, or connect to a cluster with --address",
        key=key,
        code="too-few-resources",
    )


def prepare_environment(address: str | None) -> None:
    """Set the environment variables that Ray reads, some of them at import, so call this before
    importing Ray.

    ``address`` is the address of a cluster, which has its own token; None means that this process
    starts Ray. An already imported Ray then rereads the token and the loopback setting.
    """
    for name, value in _ENVIRONMENT.items():
        if name not in os.environ:
            set_for_sweep(name, value)
    if address is None:
        # With clusters disabled, Ray listens only on the loopback address.
        set_for_sweep("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        if "RAY_AUTH_MODE" not in os.environ:
            # Otherwise Ray would generate a token and write it to the home folder.
            set_for_sweep("RAY_AUTH_MODE", "token")
            set_for_sweep("RAY_AUTH_TOKEN", secrets.token_hex(32))
        if "ray" in sys.modules:
            reload_environment()


@contextmanager
def ray_running(
    address: str | None, cpus: int | None, folder: Path, log: Path
) -> Iterator[list[Node]]:
    """Start Ray on this machine or connect to a cluster, for the duration of the block; yield its
    nodes.

    Ray's own messages go to ``log``, because they would bury the sweep's output.

    Args:
        address: address of the cluster; None: start Ray on this machine.
        cpus: number of CPUs of this machine to use; None: all.
        folder: folder of Ray's files on this machine.
        log: file for Ray's messages.

    Raises:
        MissingError: no cluster at that address.
        RuntimeError: Ray does not start on this machine.
    """
    prepare_environment(address)
    import ray

    _send_logs_to(log)
    log_errors()
    with ExitStack() as stack:
        if address is None:
            node = local_node(cpus)
            head = stack.enter_context(_daemons(node, folder, log))
            stack.callback(ray.shutdown)
            ray.init(address=head, log_to_driver=False, configure_logging=False, **ON_LOOPBACK)
            yield [node]
        else:
            stack.callback(ray.shutdown)
            _connect(address, log)
            yield present_nodes()


def _connect(address: str, log: Path) -> None:
    import ray

    try:
        host, _, port = bootstrap_address(address).rpartition(":")
        if port.isdecimal():
            check_cluster(host, int(port))  # the cluster found by `auto` may no longer exist
            warn_if_unauthenticated(host, int(port))
        packages = [str(Path(__file__).resolve().parents[2] / name) for name in LOPTUNE_PACKAGES]
        with stderr_to(log):
            ray.init(
                address=address,
                log_to_driver=False,
                configure_logging=False,
                runtime_env={
                    "env_vars": plain_environment(),
                    "py_modules": packages,
                    "worker_process_setup_hook": SETUP_HOOK,
                },
            )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise MissingError(
            f"no Ray cluster at {address}: {error}",
            "--address",
            "start one with `ray start --head`",
            code="no-ray-cluster",
        ) from error


def check_address(address: str | None) -> None:
    """Reject an invalid address, a Ray client address, and an address at which no cluster answers.

    Raises:
        ConfigError: the address is neither HOST:PORT nor auto, or it is a Ray client's address,
            with which the sweep would run unattended on the head node.
        MissingError: nothing answers at HOST:PORT within five seconds, or it is not Ray.
    """
    if address is None or address == "auto":
        return
    if address.startswith("ray://"):
        raise ConfigError(
            "a sweep cannot run through a Ray client",
            f"--address {address}",
            "run it on a node of the cluster with --address auto, or submit it with `ray job "
            "submit` (docs/guides/cluster.md)",
            code="ray-client",
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= LARGEST_PORT:
        raise ConfigError(
            "invalid cluster address",
            f"--address {address}",
            "write auto, or HOST:PORT",
            code="cluster-address",
        )
    check_cluster(host.strip("[]"), int(port))


def check_cluster(host: str, port: int) -> None:
    """Reject an address at which no Ray cluster answers.

    Raises:
        MissingError: nothing answers, or something other than Ray does; the message has the reason.
    """
    try:
        with socket.create_connection((host, port), timeout=ANSWER_LIMIT_S) as connection:
            connection.sendall(_PREFACE)
            header = b""
            with suppress(OSError):  # no answer or a closed connection: not a cluster
                header = connection.recv(9)
    except OSError as error:
        raise _missing(
            host, port, f"no answer: {error.strerror or error}", "no-ray-cluster"
        ) from None
    if len(header) < 4 or header[3] != _SETTINGS_FRAME:
        raise _missing(host, port, "the server there is not Ray", "server-is-not-ray")


def _missing(host: str, port: int, reason: str, code: str) -> MissingError:
    return MissingError(
        f"no Ray cluster at {host}:{port}: {reason}",
        "--address",
        "start one with `ray start --head`, or leave out --address to run on this machine",
        code=code,
    )


def warn_if_unauthenticated(host: str, port: int) -> None:
    """Warn if other machines can run code on the cluster without a token."""
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if accepts_without_token(host, port):
        print(
            f"warning: the Ray cluster at {host}:{port} requires no token: anyone who can "
            "reach it can run code on all its nodes and read its passwords. Start every node "
            "with RAY_AUTH_MODE=token (docs/guides/cluster.md)",
            flush=True,
        )


@contextmanager
def _daemons(node: Node, folder: Path, log: Path) -> Iterator[str]:
    """Run Ray's daemons for the duration of the block, with their files in ``folder``; yield their
    address.

    The daemons run in their own process group. A SIGTERM to this process's group (from `timeout` or
    the end of a job) requests an orderly stop, and trials need Ray to save checkpoints. The daemons
    are ended with SIGKILL, because the control server takes half a minute to exit on SIGTERM.

    Raises:
        RuntimeError: the daemons do not start, or not in time.
    """
    flags = {
        "port": 0,
        "node-ip-address": "127.0.0.1",
        "num-cpus": int(node.cpus),
        "num-gpus": int(node.gpus),
        "object-store-memory": _OBJECT_STORE_BYTES,
        "temp-dir": folder,
        "include-dashboard": "false",
        "include-log-monitor": "false",
    }
    options = [f"--{name}={value}" for name, value in flags.items()]
    command = [sys.executable, "-P", "-c", RAY, "start", "--head", *options]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    # no prestarted workers for tasks: a sweep only uses actors
    environment["RAY_prestart_worker_first_driver"] = "0"
    # By default, workers run at a niceness 15 higher than other processes: if another process keeps
    # a core busy, a trial would get only 3% of that core.
    environment.setdefault("RAY_worker_niceness", "0")
    environment[SETUP_HOOK_VARIABLE] = SETUP_HOOK
    with log.open("ab") as output:
        starter = subprocess.Popen(
            [*command, "--no-monitor", "--disable-usage-stats"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
        )
    try:
        with suppress(subprocess.TimeoutExpired):
            starter.wait(_START_LIMIT_S)
        code = starter.returncode
        if code != 0:
            how = "is too slow" if code is None else f"ended with {code}"
            raise RuntimeError(f"`ray start` {how}")
        yield (folder / "ray_current_cluster").read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(starter.pid, signal.SIGKILL)
        starter.wait()


def present_nodes() -> list[Node]:
    """Return the nodes of the cluster that this process is connected to."""
    import ray

    nodes = []
    for machine in ray.nodes():
        resources = machine["Resources"]
        runs_trials = machine["Alive"] and resources.get("CPU")  # a head node may offer no CPU
        if runs_trials:
            memory = int(resources.get("memory", 0)) or None
            nodes.append(Node(resources["CPU"], resources.get("GPU", 0), memory))
    if not nodes:  # a node without resources, so that callers never get an empty list
        nodes.append(Node(0, 0))
    return nodes


def cluster_nodes(address: str) -> list[Node]:
    """Return the nodes of a running cluster.

    Raises:
        MissingError: no cluster at that address.
    """
    with (
        temporary_folder("nodes") as folder,
        ray_running(address, None, folder, folder / "log") as nodes,
    ):
        return nodes


@contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Redirect standard error to a file: Ray's C++ core writes to it, and no setting turns that
    off.
    """
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _workers_on(resources: ResourcesSpec, node: Node) -> int:
    """Return how many workers a node can run at a time.

    A worker with a fraction of a GPU gets it from one GPU, because Ray does not split a fraction
    over two GPUs: with 0.15 of a GPU each, 8 GPUs hold 8 x 6 workers.
    """
    by_cpu = int(node.cpus // resources.cpus_per_worker)
    fraction = resources.gpus_per_worker
    if not fraction:
        return by_cpu
    if fraction < 1:
        # Ray counts in units of 1e-4, so that three thirds (0.3333) fill a GPU
        by_gpu = int(node.gpus) * (_GPU_UNITS // max(1, round(fraction * _GPU_UNITS)))
    else:
        by_gpu = int(node.gpus // fraction)
    return min(by_cpu, by_gpu)


def node_text(node: Node) -> str:
    """Return the GPUs and CPUs of a machine as text."""
    return f"{counted(node.gpus, 'GPU')} and {counted(node.cpus, 'CPU')}"


def _usable_cpus() -> int:
    cpus = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # CPU quota of a container
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        if quota != "max":
            cpus = min(cpus, max(1, int(quota) // int(period)))
    return cpus


def _send_logs_to(path: Path) -> None:
    # if the log cannot be written, do not print a traceback for every line
    logging.raiseExceptions = False
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("ray", "ray.tune", "ray.train", "ray.data", "ray.serve", "ray.rllib", "sweep"):
        logger = logging.getLogger(name)
        logger.handlers = [handler, *verbose_handlers()]
        logger.propagate = False
        logger.setLevel(logging.INFO)
