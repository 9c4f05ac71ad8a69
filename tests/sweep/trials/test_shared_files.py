from types import SimpleNamespace

import pytest

from loptune.errors import ConfigError, MissingError
from sweep.record.folder import sweep_folder
from sweep.record.sweep_record import SweepRecord
from sweep.space.file import load_space
from sweep.trials import nodes, shared_files
from tests.refusals import refused
from tests.sweep.harness import SHORT, write_space

HTTP = {"tracking.uri": "http://mlflow.test:5000"}


def node(name, cpus=4):
    return {
        "Alive": True,
        "NodeID": name,
        "NodeManagerHostname": name,
        "Resources": {"CPU": cpus} if cpus else {},
    }


def sweep_in(tmp_path, **overrides):
    trainer = {"preset": "tiny_kk", "overrides": {**SHORT, **overrides}}
    folder = sweep_folder(tmp_path, "fake")
    folder.root.mkdir()
    return load_space(write_space(tmp_path / "space.yaml", trainer=trainer)), folder


@pytest.fixture
def looked_for(monkeypatch):
    """What a cluster is asked to find: a head without CPUs, a lost node, and one that sees no
    folder called far.
    """
    paths = []

    def unseen(nodes, wanted):
        assert [machine["NodeID"] for machine in nodes] == ["gpu-1"]
        for path in wanted:
            assert path.exists()
            paths.append(path)
            if "far" in path.parts:
                yield "gpu-1", path

    monkeypatch.setattr(
        shared_files.ray, "nodes", lambda: [node("head", 0), node("lost"), node("gpu-1")]
    )
    monkeypatch.setattr(shared_files, "is_reachable", lambda node: node["NodeID"] != "lost")
    monkeypatch.setattr(shared_files, "unseen_paths", unseen)
    return paths


def test_nodes_look_for_folder_model_and_data_but_not_for_hub_names(
    tmp_path, looked_for, monkeypatch
):
    (tmp_path / "train.parquet").touch()
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    sets = {"dev": "K-and-K/knights-and-knaves"}
    data = {"data.train": "train.parquet", "model.name_or_path": "model", "evaluation.sets": sets}
    spec, folder = sweep_in(tmp_path, **HTTP, **data)
    shared_files.check_shared_files(SweepRecord(spec, folder))
    mark, *inputs = looked_for
    assert mark.parent == folder.root
    assert sorted(inputs) == [tmp_path / "model", tmp_path / "train.parquet"]
    assert list(folder.root.iterdir()) == []


def test_a_runs_folder_of_one_machine_is_refused(tmp_path, looked_for):
    (tmp_path / "far").mkdir()
    spec, folder = sweep_in(tmp_path / "far", **HTTP)
    named = ("gpu-1", str(tmp_path / "far"))
    with refused("path-not-shared", MissingError, names=named) as caught:
        shared_files.check_shared_files(SweepRecord(spec, folder))
    assert caught.value.where == "--runs-dir"
    assert list(folder.root.iterdir()) == []


def test_an_mlflow_file_is_no_store_for_other_machines(tmp_path, looked_for):
    spec, folder = sweep_in(tmp_path, **{"tracking.uri": f"sqlite:///{tmp_path}/mlflow.db"})
    with refused("store-is-a-file", ConfigError, key="tracking.uri"):
        shared_files.check_shared_files(SweepRecord(spec, folder))
    offline = spec.with_program(spec.program.with_tracking(offline=True))
    shared_files.check_shared_files(SweepRecord(offline, folder))


def test_a_node_answers_what_it_does_not_see(tmp_path, monkeypatch):
    monkeypatch.setattr(nodes, "VISIBLE_WITHIN_S", 0.0)
    (tmp_path / "here").touch()
    assert shared_files.missing_on_this_node([tmp_path / "here", tmp_path / "gone"]) == [
        tmp_path / "gone"
    ]
    assert shared_files.missing_on_this_node([tmp_path / "here"]) == []


def test_a_busy_node_is_not_asked_to_install_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(answer: object, timeout: float) -> None:
        raise shared_files.ray.exceptions.GetTimeoutError("Get timed out")

    look = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda paths: "answer"))
    monkeypatch.setattr(shared_files.ray, "remote", lambda **_: lambda function: look)
    monkeypatch.setattr(shared_files.ray, "get", get)
    busy = {"NodeID": "1" * 56, "NodeManagerHostname": "gpu-1"}
    with refused("node-too-busy", MissingError) as raised:
        next(shared_files.unseen_paths([busy], []))
    assert "gpu-1" in raised.value.what and "60 s" in raised.value.what
