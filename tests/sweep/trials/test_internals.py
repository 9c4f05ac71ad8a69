import inspect
import pkgutil

import pytest
import ray

from sweep.trials import internals

PRIVATE = {
    "ray._private.services:canonicalize_bootstrap_address": "bootstrap_address",
    "ray._private.state:GlobalState.actor_table": "node_of",
    "ray._private.state:actors": "node_of",
    "ray.core.generated.autoscaler_pb2:DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION": (
        "leave_cluster"
    ),
    "ray._raylet:InnerGcsClient.drain_node": "leave_cluster",
    "ray._raylet:GcsClient": "asks_for_no_token",
    "ray._private.ray_constants:ENABLE_RAY_CLUSTER": "read_environment_again",
    "ray._raylet:Config.initialize": "read_environment_again",
    "ray._raylet:AuthenticationTokenLoader.reset_cache": "read_environment_again",
}


@pytest.mark.parametrize("name", PRIVATE)
def test_what_ray_keeps_private_and_a_sweep_needs_is_there(name: str) -> None:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        pytest.fail(
            f"Ray {ray.__version__} has no {name}: give {PRIVATE[name]} of {internals.__file__} "
            "another way"
        )


def test_a_driver_can_be_told_its_address() -> None:
    source = inspect.getsource(ray.init)
    for name in internals.ON_LOOPBACK:
        assert f'"{name}"' in source, (
            f"Ray {ray.__version__} takes no {name}: give ON_LOOPBACK another way"
        )
