"""Starting Ray for a sweep: the resources of machine or cluster, and whether a trial fits."""

import ipaddress
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from rewards.own import OWN_PACKAGES
from sweep.programs.resources import ResourcesSpec
from sweep.trials.credentials import plain_environment
from sweep.trials.internals import (
    ON_LOOPBACK,
    RAY,
    asks_for_no_token,
    bootstrap_address,
    log_errors,
    read_environment_again,
)
from trainer.errors import ConfigError, MissingError
from trainer.parallel.gpus import visible_gpus
from trainer.shell.table import counted

_START_LIMIT_S = 300.0
ANSWER_LIMIT_S = 5.0

# What a client of HTTP/2 says first (RFC 9113, section 3.4), and an empty SETTINGS frame behind it.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
_SETTINGS_FRAME = 4  # type of the frame that a server of HTTP/2, such as gRPC's, answers with
_OBJECT_STORE_BYTES = 200 * 2**20  # results are small dicts; Ray would take 30% of the memory

# Documented settings of Ray and Tune that no argument sets.
_ENVIRONMENT = {
    # the new one prints a table even where Tune is told to print nothing
    "RAY_AIR_NEW_OUTPUT": "0",
    # A relative path in a configuration means the folder the sweep was started in.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Tune would write and hold all it knows of every trial, again and again; a restart is built
    # from the ledger.
    "TUNE_GLOBAL_CHECKPOINT_S": "1e9",
    # A diverged trial reports no score.
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
}


@dataclass(frozen=True)
class Node:
    """CPUs, GPUs and memory of one machine."""

    cpus: float
    gpus: float
    memory: int | None = field(default=None, compare=False)  # bytes; None where it is not known


def local_node(cpus: int | None = None) -> Node:
    """Return the machine this runs on, without asking Ray (which takes seconds to import)."""
    return Node(cpus or _usable_cpus(), visible_gpus(), psutil.virtual_memory().total)


def slots(resources: ResourcesSpec, nodes: list[Node]) -> int:
    """Count the trials that fit on the nodes at one time: each on one node, or over several if no
    node holds a whole trial.
    """
    by_node = [_workers_on(resources, node) for node in nodes]
    workers = resources.workers_per_trial
    return sum(fitting // workers for fitting in by_node) or sum(by_node) // workers


def spreads(resources: ResourcesSpec, nodes: list[Node]) -> bool:
    """Return whether the workers of a trial run on several nodes, because no node holds all of
    them.
    """
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
        f"a trial needs {counted(resources.gpus_per_trial, 'GPU')} and {counted(cpus, 'CPU')}; "
        f"present: {node_text(total)}{where}",
        "resources.gpus_per_trial"
        if resources.gpus_per_trial > total.gpus
        else "resources.workers_per_trial",
        "lower resources, or name a cluster with --address",
    )


def prepare_environment(address: str | None) -> None:
    """Set the variables that Ray reads, some of them already while it is imported: best called
    before that.

    A Ray that is imported already reads token and address again.
    A cluster, at an address, has its own token; None starts a Ray of this process.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if address is None:
        # Where Ray is told that it makes no cluster it listens on the loopback address alone.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        if "RAY_AUTH_MODE" not in os.environ:
            # Ray would otherwise make up a token and write it into the user's home folder.
            os.environ["RAY_AUTH_MODE"] = "token"
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        if "ray" in sys.modules:
            read_environment_again()


@contextmanager
def ray_running(
    address: str | None, cpus: int | None, folder: Path, log: Path
) -> Iterator[list[Node]]:
    """Start Ray on this machine, or connect to a cluster, for the block; yields its nodes.

    Ray's own messages go to ``log``: its warnings about itself would bury the sweep's lines.

    Raises:
        MissingError: no cluster at that address.
        RuntimeError: Ray does not start here.
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
            f"no Ray cluster at {address}: {error}",
            "--address",
            "start one with `ray start --head`",
        ) from error


def check_address(address: str | None) -> None:
    """Refuse an address a sweep cannot be driven through, or at which no cluster answers.

    Raises:
        ConfigError: not HOST:PORT or auto; or a Ray client's, where the sweep would run out of
            sight on the head.
        MissingError: nobody answers at HOST:PORT within five seconds, or somebody else does.
    """
    if address is None or address == "auto":
        return
    if address.startswith("ray://"):
        raise ConfigError(
            "a sweep is not driven through a Ray client",
            f"--address {address}",
            "type it on a node of the cluster with --address auto, or send it there with `ray job "
            "submit` (docs/guides/cluster.md)",
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ConfigError(
            "not an address of a cluster", f"--address {address}", "write auto, or HOST:PORT"
        )
    check_cluster(host.strip("[]"), int(port))


def check_cluster(host: str, port: int) -> None:
    """Refuse a place where no Ray cluster answers.

    Raises:
        MissingError: says whether nobody or somebody else answers.
    """
    try:
        with socket.create_connection((host, port), timeout=ANSWER_LIMIT_S) as connection:
            connection.sendall(_PREFACE)
            header = b""
            with suppress(OSError):  # silence, or a hang-up: not a cluster
                header = connection.recv(9)
    except OSError as error:
        raise _missing(host, port, f"nobody answers: {error.strerror or error}") from None
    if len(header) < 4 or header[3] != _SETTINGS_FRAME:
        raise _missing(host, port, "what answers there is not Ray")


def _missing(host: str, port: int, reason: str) -> MissingError:
    return MissingError(
        f"no Ray cluster at {host}:{port}: {reason}",
        "--address",
        "start one with `ray start --head`, or leave out --address to run on this machine",
    )


def warn_if_open(host: str, port: int) -> None:
    """Say so if machines other than this one can run code in the cluster without a token."""
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return
    if asks_for_no_token(host, port):
        print(
            f"warning: the Ray cluster at {host}:{port} asks for no token: whoever reaches it can "
            "run code on all its nodes and read its passwords. Start every node with "
            "RAY_AUTH_MODE=token (docs/guides/cluster.md)",
            flush=True,
        )


@contextmanager
def _daemons(node: Node, folder: Path, log: Path) -> Iterator[str]:
    """Run Ray's daemons for the block, with their files in a folder; yields their address.

    They are a process group of their own: a SIGTERM for the whole group of this process (`timeout`,
    a job's end) asks it to stop orderly, and without Ray no trial can save a checkpoint. SIGKILL
    ends them, for after a SIGTERM the control server stays for half a minute.
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
    # processes that wait for tasks: a sweep has only actors
    environment["RAY_prestart_worker_first_driver"] = "0"
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
            raise RuntimeError(
                f"`ray start` {'is too slow' if code is None else f'ended with {code}'}"
            )
        yield (folder / "ray_current_cluster").read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(starter.pid, signal.SIGKILL)
        starter.wait()


def present_nodes() -> list[Node]:
    """Return the nodes of the cluster that this process is connected to."""
    import ray

    present = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    return [
        Node(node["CPU"], node.get("GPU", 0), int(node.get("memory", 0)) or None)
        for node in present
        if node.get("CPU")
    ] or [Node(0, 0)]


def cluster_nodes(address: str) -> list[Node]:
    """Return the nodes of a running cluster.

    Raises:
        MissingError: no cluster at that address.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ray_running(address, None, folder, folder / "log") as nodes:
            return nodes


@contextmanager
def _stderr_to(log: Path) -> Iterator[None]:
    """Send what Ray's own core writes to standard error into a file: no setting of Ray keeps it
    back.
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
    by_cpu = node.cpus // resources.cpus_per_worker
    return int(
        min(by_cpu, node.gpus // resources.gpus_per_worker if resources.gpus_per_worker else by_cpu)
    )


def node_text(node: Node) -> str:
    """Return GPUs and CPUs of a machine in words."""
    return f"{counted(node.gpus, 'GPU')} and {counted(node.cpus, 'CPU')}"


def _usable_cpus() -> int:
    cpus = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # a container's share
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cpus = min(cpus, max(1, int(quota) // int(period)))
    return cpus


def _send_logs_to(path: Path) -> None:
    # a log that cannot be written is no page of tracebacks for every line
    logging.raiseExceptions = False
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for name in ("ray", "ray.tune", "ray.train", "ray.data", "ray.serve", "ray.rllib", "sweep"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO)
