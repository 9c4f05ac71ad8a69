"""Every private API of Ray that a sweep uses, with the reason.

An upgrade of Ray may remove any of these APIs: tests/sweep/trials/test_internals.py then fails.
Their names are the same in Ray 2.52, 2.56 and 2.60 (`GcsClient` and `DrainNodeReason` were looked
up in 2.60 only). Beyond plain names, an upgrade most easily breaks these:

- `log_errors`: `print_to_stdstream` must stay the function that prints a daemon's error, with a
  mapping that has "lines". `ray.init` has no option for it: ``log_to_driver`` is about the output
  of workers.
- `reload_environment`: classes of Ray's compiled core. They can go once Ray reads token and
  loopback setting at `ray.init` instead of at import.
- `forget_scores`, `only_scores`: fields of ASHA's brackets.
- `RAY`: that Ray starts no client server if grpc is missing. `--ray-client-server-port` must be
  1024 or more, so it cannot turn the server off.

Public alternatives that do not work here: `ray.util.state` needs a dashboard (`node_of`); `ray
drain-node` is hidden as well (`leave_cluster`); `ray status` takes three times as long to start and
fails for other reasons, too (`accepts_without_token`); the runtime environment of `SETUP_HOOK`
costs every worker time; `ray.init(address="auto")` waits for a cluster that is missing
(`bootstrap_address`).
"""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_TOKEN_LIMIT_S = 30.0

# Without this, the driver looks for a raylet at the machine's other address and waits forever.
ON_LOOPBACK = {"_node_ip_address": "127.0.0.1"}

# The `ray` command without grpc. With grpc it also starts a Ray client server, a process and port
# that sweeps do not use and that no option disables.
RAY = "import sys; sys.modules['grpc'] = None; from ray.scripts.scripts import main; main()"


# Workers call the function that this variable names before they import any of our modules. Ray puts
# the driver's folder first on their sys.path, where a user's trainer.py would shadow our package.
# The option worker_process_setup_hook of `ray.init` would give every worker a runtime
# environment, which costs time.
SETUP_HOOK_VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
SETUP_HOOK = "loptune.shadowing.prepare_worker"


def bootstrap_address(address: str) -> str:
    """Return HOST:PORT of a cluster: public calls resolve `auto` only after connecting."""
    from ray._private import services

    return str(services.canonicalize_bootstrap_address(address))


def reload_environment() -> None:
    """Make an already imported Ray reread token and loopback setting from the environment; it reads
    them only once.
    """
    from ray._private import ray_constants
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    ray_constants.ENABLE_RAY_CLUSTER = False
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def log_errors() -> None:
    """Send messages of Ray's daemons to the log. Ray would print them in color, once per ended
    process, although the trial's own lines already state the reason.
    """
    from ray._private import worker

    log = logging.getLogger("ray")
    worker.print_to_stdstream = lambda data, **_: log.warning("%s", *data["lines"])


@contextmanager
def without_wandb() -> Iterator[None]:
    """Keep Tune from importing wandb, which takes a second. For its usage statistics, Tune compares
    each callback with its built-in callbacks, including the callback for wandb if that is
    installed, even if the statistics are turned off.
    """
    name = "wandb"
    hidden = name not in sys.modules
    if hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it fails
    try:
        yield
    finally:
        if hidden:
            del sys.modules[name]


def node_of(actor: str) -> str:
    """Return the id of an actor's node: the public `ray.util.state` needs a dashboard, which a
    sweep does not have.
    """
    import ray

    place = ray._private.state.actors(actor).get("Address", {})
    return str(place.get("NodeID", ""))


def leave_cluster(reason: str) -> None:
    """Remove this node from the cluster; the command `ray drain-node` is hidden as well."""
    import ray
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    context = ray.get_runtime_context()
    # a drain that Ray cannot reject
    preempted = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    context.worker.gcs_client.drain_node(context.get_node_id(), preempted, reason, 0)


def accepts_without_token(host: str, port: int) -> bool:
    """Return whether a cluster accepts connections without a token; public calls would have to join
    the cluster.
    """
    # In a separate process, because Ray reads the mode only once, at import.
    client = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1])"
    command = [sys.executable, "-c", client, f"{host}:{port}"]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    try:
        ended = subprocess.run(
            command, env=environment, capture_output=True, timeout=_TOKEN_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode == 0


def forget_scores(scheduler: Any, trial_id: str, evaluation: int) -> None:
    """Remove a trial's scores at this and later evaluations from ASHA's rungs: its public methods
    only add scores.
    """
    for milestone, recorded in scheduler._trial_info[trial_id]._rungs:
        if milestone >= evaluation:
            recorded.pop(trial_id, None)


@contextmanager
def only_scores(
    scheduler: Any, trial_id: str, is_comparable: Callable[[int, str], bool]
) -> Iterator[None]:
    """Hide the scores of other trials from ASHA's decision about a trial: it compares all scores
    of a rung.

    ``is_comparable(milestone, other)`` returns whether another trial's score stays.
    """
    hidden: list[tuple[dict[str, float], dict[str, float]]] = []
    for milestone, recorded in scheduler._trial_info[trial_id]._rungs:
        apart = {}
        for other in list(recorded):
            if other != trial_id and not is_comparable(milestone, other):
                apart[other] = recorded.pop(other)
        hidden.append((recorded, apart))
    try:
        yield
    finally:
        for recorded, apart in hidden:
            recorded.update(apart)


def milestones_reached(scheduler: Any, trial_id: str) -> list[int]:
    """Return the milestones at which ASHA has recorded a score of a trial: no public method returns
    them.
    """
    rungs = scheduler._trial_info[trial_id]._rungs
    return [milestone for milestone, recorded in rungs if trial_id in recorded]
