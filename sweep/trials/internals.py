"""All that a sweep uses of Ray although Ray keeps it private, with the reason of each.

An upgrade of Ray may take one away: tests/sweep/trials/test_internals.py then names it.
"""

import logging
import os
import subprocess
import sys
from contextlib import suppress

_TOKEN_LIMIT_S = 30.0

# Else a driver looks for a raylet at the machine's other address, and waits for ever.
ON_LOOPBACK = {"_node_ip_address": "127.0.0.1"}

# The command `ray`. Where it finds grpc it starts a server of clients, too: a process and a port
# that no sweep uses, and no option leaves it out.
RAY = "import sys; sys.modules['grpc'] = None; from ray.scripts.scripts import main; main()"


def bootstrap_address(address: str) -> str:
    """Return HOST:PORT of a cluster: public calls tell what `auto` means only once they are
    connected.
    """
    from ray._private import services

    return str(services.canonicalize_bootstrap_address(address))


def read_environment_again() -> None:
    """Let a Ray that is imported already use the environment's token and loopback address: it reads
    them once.
    """
    from ray._private import ray_constants
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    ray_constants.ENABLE_RAY_CLUSTER = False
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def log_errors() -> None:
    """Log what Ray's daemons report: Ray prints it in color, again for every process that ended,
    and a trial's lines name the reason.
    """
    from ray._private import worker

    log = logging.getLogger("ray")
    worker.print_to_stdstream = lambda data, **_: log.warning("%s", *data["lines"])


def node_of(actor: str) -> str:
    """Return the id of an actor's node: the public `ray.util.state` asks a dashboard, and a sweep
    has none.
    """
    import ray

    place = ray._private.state.actors(actor).get("Address", {})
    return str(place.get("NodeID", ""))


def leave_cluster(reason: str) -> None:
    """Take this node out of the cluster: the command that does it, `ray drain-node`, is hidden,
    too.
    """
    import ray
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason

    context = ray.get_runtime_context()
    # a drain that may not be refused
    preempted = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    context.worker.gcs_client.drain_node(context.get_node_id(), preempted, reason, 0)


def asks_for_no_token(host: str, port: int) -> bool:
    """Return whether a cluster serves a process without a token: public calls would join it to find
    out.
    """
    # In a process of its own: Ray reads the mode once, when it is imported.
    client = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1])"
    command = [sys.executable, "-c", client, f"{host}:{port}"]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    with suppress(subprocess.TimeoutExpired):
        return (
            subprocess.run(
                command, env=environment, capture_output=True, timeout=_TOKEN_LIMIT_S
            ).returncode
            == 0
        )
    return False
