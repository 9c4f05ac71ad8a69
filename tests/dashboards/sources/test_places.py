"""Folders and databases of MLflow, and the names of runs."""

import mlflow
import pandas as pd
import pytest

from dashboards.sources.mlflow import read_experiment
from dashboards.sources.places import read_place, select
from dashboards.sources.run_tables import NOTES
from loptune.errors import ConfigError
from tests.refusals import refused


@pytest.fixture
def mlruns(tmp_path):
    """A folder as MLflow 2 wrote it: two runs that ended, one that failed."""
    experiment = tmp_path / "mlruns/111"
    experiment.mkdir(parents=True)
    (experiment / "meta.yaml").write_text(
        "artifact_location: file:///x\ncreation_time: 1\nexperiment_id: '111'\n"
        "last_update_time: 1\nlifecycle_stage: active\nname: exp\n"
    )
    for seed, status in enumerate((3, 3, 4)):
        number = f"a{seed:031x}"
        run = experiment / number
        for folder in ("params", "metrics", "tags", "artifacts"):
            (run / folder).mkdir(parents=True)
        (run / "meta.yaml").write_text(
            f"artifact_uri: file:///x\nend_time: 2\nentry_point_name: ''\nexperiment_id: '111'\n"
            f"lifecycle_stage: active\nrun_id: {number}\nrun_name: r{seed}\n"
            f"run_uuid: {number}\nsource_name: ''\nsource_type: 4\nsource_version: ''\n"
            f"start_time: 1\nstatus: {status}\ntags: []\nuser_id: u\n"
        )
        (run / "params/random_state").write_text(str(seed))
        (run / "metrics/acc").write_text(f"1 0.5 0\n2 0.{6 + seed} 1\n")
    return tmp_path / "mlruns"


def test_folders_of_mlflow_are_read(mlruns):
    for place in (mlruns, mlruns / "111"):
        table = read_place(str(place), "acc", "random_state")
        rows = table.sort_values(["trial", "step"])
        assert rows.acc.tolist() == [0.5, 0.6, 0.5, 0.7, 0.5, 0.8]
        assert rows["params.random_state"].tolist() == ["0", "0", "1", "1", "2", "2"]
        assert rows.status.tolist() == ["FINISHED"] * 4 + ["FAILED"] * 2
    with refused("unknown-column") as caught:
        read_place(str(mlruns), "accuracy", "random_state")
    assert "acc" in caught.value.hint
    with refused("unknown-column") as caught:
        read_place(str(mlruns), "acc", "seed")
    assert "params.random_state" in caught.value.hint


def test_databases_of_mlflow_name_their_experiments(tmp_path):
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/some.db")
    for name in ("a", "b"):
        experiment = client.create_experiment(name)
        run = client.create_run(experiment).info.run_id
        client.log_param(run, "seed", 1)
        client.log_metric(run, "acc", 0.5, step=3)
    table = read_place(str(tmp_path / "some.db"), "acc", "seed")
    assert sorted(table.experiment) == ["a", "b"] and table.step.tolist() == [3, 3]
    assert select(table, "experiment=a").experiment.tolist() == ["a"]


def test_parts_of_names_become_columns():
    table = pd.DataFrame({"Name": ["adam-s0", "sgd-s1", "debug"], "acc": [1.0, 2.0, 3.0]})
    chosen = select(table, "acc<2.5", "{opt}-s{seed}")
    assert chosen[["opt", "seed"]].to_numpy().tolist() == [["adam", "0"], ["sgd", "1"]]
    assert "1 run " in chosen.attrs[NOTES][0]
    for names, code in [("{a}/{b}", "no-name-matches"), ("{a}{a}", "repeated-part")]:
        with refused(code, ConfigError):
            select(table, "", names)
    with refused("no-names"):
        select(table[["acc"]], "", "{a}")
    with refused("unknown-column"):
        select(table, "lr=1")
    assert len(select(table.assign(seed=[0, None, 1]), "seed!=none")) == 2


def test_nested_runs_have_their_parents_settings(tmp_path):
    client = mlflow_client(tmp_path)
    experiment = client.create_experiment("ppo")
    for optimizer in ("adam", "sgd"):
        parent = client.create_run(experiment).info.run_id
        client.log_param(parent, "optimizer", optimizer)
        client.log_param(parent, "seed", "all")
        for seed in range(2):
            tags = {"mlflow.parentRunId": parent}
            run = client.create_run(experiment, tags=tags).info.run_id
            client.log_param(run, "seed", seed)
            client.log_metric(run, "acc", 0.5)
    table = read_place(str(tmp_path / "runs.db"), "acc", "seed")
    found = sorted(zip(table["params.optimizer"], table["params.seed"], strict=True))
    assert found == [("adam", "0"), ("adam", "1"), ("sgd", "0"), ("sgd", "1")]


def test_a_folder_of_mlflow_stays_as_it_is(mlruns, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    read_place(str(mlruns), "acc", "random_state")
    assert sorted(tmp_path.rglob("*")) == before  # MLflow would add .trash
    with refused("no-mlflow-store"):
        read_experiment((tmp_path / "none").as_uri(), "exp", "acc", "seed")
    assert not (tmp_path / "none").exists()


def test_ids_of_digits_and_blank_metrics_are_read(mlruns):
    experiment = mlruns / "111"
    runs = sorted(run for run in experiment.iterdir() if run.is_dir())
    run = runs[0].rename(experiment / f"{1:032d}")
    described = (run / "meta.yaml").read_text()
    (run / "meta.yaml").write_text(described.replace(runs[0].name, run.name).replace("r0", "7"))
    (runs[1] / "metrics/acc").write_text("")
    table = read_place(str(mlruns), "acc", "random_state").set_index("params.random_state")
    assert table.trial["0"].tolist() == ["7", "7"] and pd.isna(table.acc["1"])


@pytest.mark.parametrize(
    ("name", "text"), [("meta.yaml", ""), ("meta.yaml", "a: [b\n c: }"), ("metrics/acc", "x y z\n")]
)
def test_damaged_runs_of_mlflow_are_named(mlruns, name, text):
    run = next(run for run in (mlruns / "111").iterdir() if run.is_dir())
    (run / name).write_text(text)
    with refused("unreadable-store"):
        read_place(str(mlruns), "acc", "random_state")


def test_without_seeds_every_run_of_mlflow_with_the_score_counts(tmp_path):
    client = mlflow_client(tmp_path)
    experiment = client.create_experiment("ppo")
    for status in ("FINISHED", "FAILED", "FINISHED"):
        run = client.create_run(experiment).info.run_id
        if status == "FINISHED":
            client.log_metric(run, "acc", 0.5)
        client.set_terminated(run, status)
    other = client.create_run(experiment).info.run_id
    client.set_terminated(other)
    table = read_place(str(tmp_path / "runs.db"), "acc", "")
    assert table.run_id.nunique() == 3 and table.acc.isna().sum() == 1
    client.log_param(other, "seed", 3)
    assert read_place(str(tmp_path / "runs.db"), "acc", "")["params.seed"].tolist() == ["3"]


def test_runs_of_our_own_sweeps_differ_in_settings_only(tmp_path):
    client = mlflow_client(tmp_path)
    experiment = client.create_experiment("sums")
    for number, (loss, state) in enumerate([("grpo", "COMPLETE"), ("dapo", "PRUNED")]):
        tags = {"loptune.configuration": str(number), "loptune.state": state, "team": "a"}
        run = client.create_run(experiment, tags=tags).info.run_id
        for key, value in {"algorithm.loss": loss, "seed": 0}.items():
            client.log_param(run, key, value)
        client.log_metric(run, "eval/accuracy", 0.5)
    table = read_place(str(tmp_path / "runs.db"), "eval/accuracy", "")
    assert sorted(table.status) == ["COMPLETE", "PRUNED"]
    assert [column for column in table if column.startswith("tags.")] == ["tags.team"]


def test_a_store_without_runs_is_named(tmp_path):
    mlflow_client(tmp_path).create_experiment("ppo")
    with refused("no-runs"):
        read_place(str(tmp_path / "runs.db"), "acc", "seed")


def mlflow_client(folder):
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{folder}/runs.db")
