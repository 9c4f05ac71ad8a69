import inspect
import pkgutil
import sys
import threading
from importlib import import_module
from unittest.mock import Mock

import pytest
import ray
from ray._private import worker
from ray.tune import Callback

from sweep.trials import internals

PRIVATE = {
    "ray._private.services:canonicalize_bootstrap_address": "bootstrap_address",
    "ray._private.state:GlobalState.actor_table": "node_of",
    "ray._private.state:actors": "node_of",
    "ray.core.generated.autoscaler_pb2:DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION": (
        "leave_cluster"
    ),
    "ray._raylet:InnerGcsClient.drain_node": "leave_cluster",
    "ray._raylet:GcsClient": "accepts_without_token",
    "ray._private.ray_constants:ENABLE_RAY_CLUSTER": "reload_environment",
    "ray._raylet:Config.initialize": "reload_environment",
    "ray._raylet:AuthenticationTokenLoader.reset_cache": "reload_environment",
    "ray._private.worker:print_to_stdstream": "log_errors",
    "ray._private.utils:get_ray_client_dependency_error": "RAY",
    "ray.scripts.scripts:main": "RAY",
    "ray._private.ray_constants:WORKER_PROCESS_SETUP_HOOK_ENV_VAR": "SETUP_HOOK_VARIABLE",
}


@pytest.mark.parametrize("name", PRIVATE)
def test_what_ray_keeps_private_and_a_sweep_needs_is_there(name):
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        pytest.fail(
            f"Ray {ray.__version__} has no {name}: give {PRIVATE[name]} of {internals.__file__} "
            "another way"
        )


def test_what_a_daemon_reports_goes_into_the_log_alone(monkeypatch, capsys):
    log = Mock()
    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)
    monkeypatch.setattr(internals, "logging", Mock(getLogger=Mock(return_value=log)))
    internals.log_errors()
    ended = threading.Event()
    reports = iter([(None, {"job_id": None, "error_message": "low on memory"})])
    client = Mock()
    client.gcs_error_subscriber.poll = lambda: next(reports, None) or ended.set() or (None, None)
    worker.listen_error_messages(client, ended)
    log.warning.assert_called_once_with("%s", "low on memory")
    assert capsys.readouterr() == ("", "")


def test_a_driver_can_be_told_its_address():
    source = inspect.getsource(ray.init)
    for name in internals.ON_LOOPBACK:
        assert f'"{name}"' in source, (
            f"Ray {ray.__version__} takes no {name}: give ON_LOOPBACK another way"
        )


def test_workers_read_the_variable_of_the_setup_hook():
    from ray._private import ray_constants

    assert internals.SETUP_HOOK_VARIABLE == ray_constants.WORKER_PROCESS_SETUP_HOOK_ENV_VAR
    module, _, function = internals.SETUP_HOOK.rpartition(".")
    assert callable(getattr(import_module(module), function))


def test_tune_counts_callbacks_without_importing_wandb(monkeypatch):
    from ray.air._internal.usage import _count_callbacks

    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with internals.without_wandb():
        assert _count_callbacks([Callback()]) == {"CustomCallback": 1}
        with pytest.raises(ImportError):
            import_module("wandb")
    assert "wandb" not in sys.modules
