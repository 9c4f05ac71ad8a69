"""A simulated cluster of two nodes with four logical GPUs each loses a node, or its driver."""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from sweep.driver.guard import sweep_processes
from sweep.record.folder import sweep_folder
from tests.paths import ROOT
from tests.run_cli import start_cli
from tests.sweep.harness import (
    FOUR_GPUS,
    finish,
    history,
    kill,
    metrics,
    results,
    running,
    states,
    wait_until,
    write_space,
)
from tests.sweep.programs.scripts import assert_complete, write_project

pytestmark = pytest.mark.slow

PASSWORD = "a-password-xyz"
NODE = {"num_cpus": 4, "num_gpus": 4, "object_store_memory": 80 * 2**20}


@dataclass
class Simulated:
    """A cluster whose driver may be anywhere: the head has no resources of its own."""

    cluster: Any
    nodes: list[Any]

    def remove(self, node_id):
        (node,) = [node for node in self.nodes if node.node_id == node_id]
        # SIGKILL: Ray notices it after its processes
        self.cluster.remove_node(node, allow_graceful=False)
        self.nodes.remove(node)


@pytest.fixture(scope="module")
def simulated():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # these GPUs are Ray's numbers only
        from ray.cluster_utils import Cluster

        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "object_store_memory": 80 * 2**20,
                "include_dashboard": False,
            },
        )
        nodes = [cluster.add_node(**NODE) for _ in range(2)]
        cluster.wait_for_nodes()
        yield Simulated(cluster, nodes)
        cluster.shutdown()


def test_more_than_all_nodes_have_exits_3_and_leaves_the_name_free(simulated, tmp_path):
    space = ranks_space(tmp_path / "space.yaml", {"gpus_per_trial": 10, "workers_per_trial": 10})
    with running(*arguments("run", simulated, space)) as process:
        code, _, err = finish(process)
    assert code == 3
    (what,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert what.endswith("[too-few-resources]")
    assert "10 GPUs and 10 CPUs" in what and "8 GPUs and 8 CPUs on 2 nodes" in what
    assert not (tmp_path / "fake").exists()


def test_a_killed_driver_takes_its_trials_along(simulated, tmp_path):
    folder = tmp_path / "fake"
    space = ranks_space(tmp_path / "space.yaml", {"gpus_per_trial": 2, "workers_per_trial": 2})
    with running(*arguments("run", simulated, space), step_s=20) as process:
        wait_until(lambda: bool(history(folder, "c000-s0", "resume")), what="a trial to start")
        kill(process)
    wait_until(
        lambda: not sweep_processes(sweep_folder(tmp_path, "fake").root), what="the ranks to end"
    )
    groups = simulated.cluster.global_state.placement_group_table
    wait_until(lambda: {group["state"] for group in groups().values()} == {"REMOVED"})


def test_trials_fill_the_nodes_and_outlive_one(simulated, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)
    folder = tmp_path / "fake"
    # The first two would not end before the node is removed, though one starts half a minute after
    # the other.
    (tmp_path / "faults.json").write_text(
        json.dumps({f"c00{number}-s0": {"step_s": 10.0} for number in (0, 1)})
    )
    space = ranks_space(tmp_path / "space.yaml", FOUR_GPUS)
    with running(*arguments("run", simulated, space)) as process:
        first = ("c000-s0", "c001-s0")
        wait_until(
            lambda: all(len(history(folder, trial, "step")) >= 2 for trial in first),
            what="two trials",
        )
        assert [path.name for path in (folder / "trials").iterdir() if path.name not in first] == []
        places = {trial: history(folder, trial, "build")[0]["node"] for trial in first}
        assert set(places.values()) == {node.node_id for node in simulated.nodes}
        assert len({process.pid for process in living_ranks(folder)}) >= 2 * 4

        removed = places["c001-s0"]
        simulated.remove(removed)
        code, out, err = finish(process)
    assert code == 0, out + err
    assert states(folder) == {f"c00{number}-s0": "COMPLETE" for number in range(5)}
    again = history(folder, "c001-s0", "build")
    assert [event["node"] == removed for event in again] == [True, False]
    assert [event["step"] for event in history(folder, "c001-s0", "resume")] == [0, 2]
    # Processes of a lost node end one after the other: the trial may be seen to go, or have seen
    # its ranks go.
    retries = re.findall(r"c001-s0 +retry not counted: .*(?:lost|died|dead|unavailable)", out)
    assert len(retries) == out.count("retry") == 1, out
    assert len(history(folder, "c000-s0", "build")) == 1
    assert {
        event["password"] for trial in results(folder) for event in history(folder, trial, "build")
    } == {"xyz"}
    nobody_wrote(PASSWORD, folder, Path(simulated.cluster.head_node.get_session_dir_path()))
    never_two_at_once_on_a_node(folder)
    nothing_is_left(simulated, folder)


def test_a_command_whose_node_is_lost_ends_there_and_goes_on_on_another(simulated, tmp_path):
    if len(simulated.nodes) < 2:  # another test has lost one
        simulated.nodes.append(simulated.cluster.add_node(**NODE))
        simulated.cluster.wait_for_nodes()
    space = write_project(
        tmp_path,
        defaults={"learning_rate": 0.1, "loss_type": "grpo", "steps": 12, "step_s": 3.0},
        search={"sampler": "random", "configurations": 0},
        limits={"max_failures": 0},
    )
    root = tmp_path / "runs" / "mine"
    options = ["--offline", "--runs-dir", root.parent, "--address", simulated.cluster.address]
    process = start_cli("sweep", "run", space, "resources.gpus_per_trial=4", *options, cwd=tmp_path)
    folders = {trial: root / "trials" / trial for trial in ("c000-s0", "c000-s1")}

    def ranks(trial):
        log = (folders[trial] / "stderr.log").read_text()
        return [
            psutil.Process(int(pid))
            for pid in re.findall(r"^rank 0: process (\d+)", log, re.MULTILINE)
        ]

    wait_until(
        lambda: all((folder / "metrics.jsonl").exists() for folder in folders.values()),
        what="both to begin",
    )
    wait_until(lambda: len(metrics(root, "c000-s1")) >= 2, what="two evaluations")
    (rank,) = ranks("c000-s1")
    above = {parent.pid for parent in rank.parents()}
    (node,) = (
        node for node in simulated.nodes if node.all_processes["raylet"][0].process.pid in above
    )
    script = rank.children(recursive=True)[-1]
    assert "train.py" in script.cmdline()
    simulated.remove(node.node_id)
    wait_until(lambda: not script.is_running(), 60, "the script on the lost node to end")
    code, out, err = finish(process)
    assert code == 0, out + err
    assert out.count("retry") == len(re.findall(r"c000-s1 +retry not counted", out)) == 1, out
    assert states(root).keys() == folders.keys()
    assert_complete(root, steps=12)


def ranks_space(path, resources):
    overrides = {"max_steps": 6, "evaluation.every_steps": 2, "checkpoint.every_steps": 2}
    batch = {
        "rollout.prompts_per_step": 20,
        "optim.update_batch_size": 20,
        "parallel.strategy": "ddp",
    }
    return write_space(
        path,
        trainer={"preset": "tiny_kk", "overrides": overrides | batch},
        baselines=[{"algorithm.ar_alpha": 0.1 * number} for number in range(5)],
        search={"sampler": "random", "configurations": 0},
        resources=resources,
        limits={"max_failures": 0},
    )


def arguments(verb, simulated, space):
    return [
        verb,
        space,
        "--runs-dir",
        space.parent,
        "--offline",
        "--address",
        simulated.cluster.address,
    ]


def never_two_at_once_on_a_node(folder):
    spans = []
    for trial in results(folder):
        for node in {event["node"] for event in history(folder, trial)}:
            times = [event["time"] for event in history(folder, trial) if event["node"] == node]
            spans.append((node, min(times), max(times)))
    for index, (node, start, end) in enumerate(spans):
        for other, begin, stop in spans[index + 1 :]:
            assert node != other or end <= begin or stop <= start


def nobody_wrote(secret, *folders):
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert any(path.name == "gcs_server.out" for path in files)
    assert [path for path in files if secret.encode() in path.read_bytes()] == []


def nothing_is_left(simulated, folder):
    """No process, and so no port, no actor or placement group."""
    wait_until(
        lambda: not sweep_processes(sweep_folder(folder.parent, "fake").root),
        what="the ranks to end",
    )
    tables = simulated.cluster.global_state

    def actors():
        return [actor["State"] for actor in tables.actor_table(None).values()]

    assert len(actors()) >= 2 * (1 + 4)  # ranks stay warm for the next trial of their node
    wait_until(lambda: set(actors()) == {"DEAD"}, what="Ray to miss the lost node's")
    groups = [group["state"] for group in tables.placement_group_table().values()]
    assert len(groups) >= 2
    assert set(groups) == {"REMOVED"}
    wait_until(lambda: not living_ranks(folder), what="the ranks' processes, which hold ports")


def living_ranks(folder):
    """Return the processes of ranks that wrote a history and still run."""
    living = []
    for path in folder.glob("trials/*/fake*.jsonl"):
        for event in map(json.loads, path.read_text().splitlines()):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(event["pid"])
                # A later process may have been given the number.
                if process.create_time() < event["time"] and process.status() != "zombie":
                    living.append(process)
    return living
