from sweep.cli import main
from sweep.commands.arguments import planned_nodes
from sweep.trials.cluster import Node
from tests.sweep.harness import FOUR_GPUS, SEVERAL_RANKS, write_space


def test_a_plan_is_made_for_as_many_machines_as_are_described(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    here = planned_nodes(address=None, cpus=6, gpus=None, nodes=None)
    described = planned_nodes(address=None, cpus=6, gpus=8, nodes=3)
    assert here == [Node(6, 2)]
    assert described == [Node(6, 8)] * 3


def test_four_gpus_on_a_machine_without_are_refused_before_ray(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    space = write_space(tmp_path / "space.yaml", resources=FOUR_GPUS, trainer=SEVERAL_RANKS)
    assert main(["run", str(space), "--runs-dir", str(tmp_path / "runs"), "--cpus", "8"]) == 3
    what, where, hint = capsys.readouterr().err.splitlines()
    assert what.endswith("[too-few-resources]")
    assert "4 GPUs and 4 CPUs" in what and "0 GPUs and 8 CPUs" in what
    assert where == "where: resources.gpus_per_trial"
    assert "--address" in hint
    assert not (tmp_path / "runs").exists()
