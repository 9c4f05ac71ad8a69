import inspect
import pkgutil
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
import ray
from ray._private import worker

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
    "ray._private.worker:print_to_stdstream": "errors_to",
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


def test_what_a_daemon_reports_goes_into_the_log_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "print_to_stdstream", worker.print_to_stdstream)
    internals.errors_to(tmp_path / "log")
    report = {"job_id": None, "error_message": "a worker was killed: low on memory\n"}
    polled = iter([(None, report), (None, report)])
    ended = threading.Event()
    subscriber = Mock()
    subscriber.poll.side_effect = lambda: next(polled, None) or ended.set() or (None, None)
    fake = Mock(gcs_error_subscriber=subscriber)
    fake.current_job_id.binary.return_value = b"job"
    worker.listen_error_messages(fake, ended)
    assert (tmp_path / "log").read_text() == 2 * report["error_message"]
    assert capsys.readouterr() == ("", "")


def test_a_driver_can_be_told_its_address() -> None:
    source = inspect.getsource(ray.init)
    for name in internals.ON_LOOPBACK:
        assert f'"{name}"' in source, (
            f"Ray {ray.__version__} takes no {name}: give ON_LOOPBACK another way"
        )
