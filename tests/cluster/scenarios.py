"""docs/guides/cluster.md typed on a laboratory of machines: it runs a sweep, refuses outsiders and
logs no secret.

make test-cluster
"""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.faults import FAULTS, Story, one_of_two_nodes_lost
from tests.cluster.lab import Lab, obstacle
from tests.cluster.page import Cluster

pytestmark = pytest.mark.timeout(1800)
ENDS_S = 900  # more than any sweep here takes


@pytest.fixture(scope="module")
def cluster(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster of the page, after its first sweep has ended well: what all others are compared
    with.
    """
    if reason := obstacle():
        pytest.skip(f"no namespaces: {reason}")
    made = Cluster(Lab(tmp_path_factory.mktemp("cluster")), tiny_policy)
    try:
        made.make()
        yield made
    finally:
        made.lab.close()


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> dict[str, dict[str, Any]]:
    plan, run = cluster.sweeps
    head = cluster.terminals["head"]
    head.type(plan)
    shown = head.type(run, timeout=ENDS_S)
    assert "RAY_AUTH_MODE" not in shown
    report = re.search(r"report: (\S+)", shown)
    assert report and (cluster.lab.shared / report[1].removeprefix("/shared/")).exists(), shown
    return cluster.state("my_space")


def test_the_page_typed_as_it_stands_runs_a_sweep_on_its_nodes(
    undisturbed: dict[str, dict[str, Any]],
) -> None:
    assert {trial["result"][0] for trial in undisturbed.values()} == {"COMPLETE"}
    assert len({trial["weights"] for trial in undisturbed.values()}) == len(undisturbed) == 3


@pytest.mark.parametrize(
    ("environment", "command", "answer"),
    [
        ("RAY_AUTH_MODE=disabled", "ray start --address {head}:6379", "nauthenticated"),
        (
            "RAY_AUTH_MODE=token RAY_AUTH_TOKEN=" + "0" * 64,
            "ray start --address {head}:6379",
            "nauthenticated",
        ),
        (
            "",
            "curl --silent --fail-with-body http://{head}:5000/api/2.0/mlflow/experiments/search",
            "not authenticated",
        ),
        ("", "curl --silent --show-error http://{head}:8265/api/jobs/", "connect to server"),
    ],
)
def test_an_outsider_is_refused(
    cluster: Cluster, environment: str, command: str, answer: str
) -> None:
    outside = cluster.lab.terminal(cluster.lab.switch)
    outside.type(f". {cluster.activate}")
    outside.start(f"{environment} {command.format(head=cluster.head.address)}")
    code, shown = outside.wait(120)
    assert code != 0 and answer in shown, shown


def end_of(story: Story, fault: Callable[[Story], None]) -> dict[str, dict[str, Any]]:
    """The state in which a sweep ends that this happens to."""
    story.cluster.complete()
    fault(story)
    story.cluster.pause(0)
    code, shown = story.terminal.wait(ENDS_S)
    assert code == 0, shown
    print(
        f"{fault.__doc__} Noticed after {story.noticed:.0f} s, ended after "
        f"{time.monotonic() - story.struck:.0f} s"
    )
    return story.cluster.state(story.sweep)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_sweep_under_a_fault_ends_as_an_undisturbed_one(
    cluster: Cluster, undisturbed: dict[str, dict[str, Any]], fault: Callable[[Story], None]
) -> None:
    cluster.space(fault.__name__)
    assert end_of(Story(cluster, fault.__name__), fault) == undisturbed


def test_a_trial_on_two_nodes_outlives_one_of_them(cluster: Cluster) -> None:
    states = []
    for name, fault in (
        ("two_nodes", lambda story: story.begin(running=1)),
        ("one_lost", one_of_two_nodes_lost),
    ):
        cluster.space(name, trials=1, strategy="ddp", workers_per_trial=2)
        states.append(end_of(Story(cluster, name), fault))
    assert states[0] == states[1]


def test_no_secret_is_in_a_log_and_nothing_is_left_running(cluster: Cluster) -> None:
    roots = [cluster.lab.shared, cluster.lab.folder]
    roots += [
        machine.root / folder
        for machine in cluster.lab.machines.values()
        for folder in ("tmp", "var/tmp")
    ]
    files = [
        path
        for root in roots
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink()
    ]
    assert {"gcs_server.out", "runtime_env_agent.log", "driver.log", "mlflow.db"} <= {
        path.name for path in files
    }
    leaks = [
        path
        for path in files
        for secret in cluster.secrets()
        if secret.encode() in path.read_bytes()
    ]
    assert leaks == []
    commands = [
        " ".join(process.cmdline())
        for node in cluster.lab.machines.values()
        for process in node.processes()
    ]
    assert not [
        command for command in commands for secret in cluster.secrets() if secret in command
    ]
