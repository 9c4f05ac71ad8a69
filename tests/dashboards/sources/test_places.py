"""Folders and databases of MLflow, and the names of runs."""

import os
import shutil
import sqlite3
from contextlib import closing

import mlflow
import pandas as pd
import pytest

from dashboards.sources.places import read_experiment, read_place, select
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


@pytest.mark.parametrize("folder", ["plain", "a?b%20c"])
def test_databases_of_mlflow_name_their_experiments(tmp_path, folder):
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/made.db")
    for name in ("a", "b"):
        experiment = client.create_experiment(name)
        run = client.create_run(experiment).info.run_id
        client.log_param(run, "seed", 1)
        client.log_metric(run, "acc", 0.5, step=3)
    file = tmp_path / folder / "some.db"
    file.parent.mkdir()
    shutil.copyfile(tmp_path / "made.db", file)
    table = read_place(str(file), "acc", "seed")
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
    with refused("no-name-matches", names=["red"]):
        select(pd.DataFrame({0: ["red"], "acc": [1.0]}), "", "{a}-s{b}")
    (only,) = select(pd.DataFrame({0: ["adam-s0"], "acc": [1.0]}), "", "{opt}-s{seed}").opt
    assert only == "adam"
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


def test_folders_of_mlflow_are_read_as_mlflow_reads_them(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    for name in ("a", "b"):
        experiment = client.create_experiment(name)
        for seed in range(2):
            tags = {"team": "x: y\n[", "mlflow.note.content": "n"}
            run = client.create_run(experiment, tags=tags, run_name=f"{seed}").info.run_id
            client.log_param(run, "model/lr", 1e-6)
            client.log_param(run, "seed", seed)
            for step in (3, 1, 3):
                client.log_metric(run, "eval/acc", seed + step / 7, step=step)
            client.set_terminated(run, ["FINISHED", "KILLED"][seed])
    client.delete_run(run)
    table = read_place(str(tmp_path / "mlruns"), "eval/acc", "seed")
    rows = []
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id]):
            points = client.get_metric_history(run.info.run_id, "eval/acc")
            for step, value in {point.step: point.value for point in points}.items():
                rows.append(
                    {
                        **{f"params.{key}": text for key, text in run.data.params.items()},
                        "tags.team": run.data.tags["team"],
                        "trial": run.info.run_name,
                        "status": run.info.status,
                        "experiment": experiment.name,
                        "step": step,
                        "eval/acc": value,
                    }
                )
    assert len(rows) == 6
    key = ["experiment", "trial", "step"]
    expected = pd.DataFrame(rows).sort_values(key, ignore_index=True)
    pd.testing.assert_frame_equal(
        table.sort_values(key, ignore_index=True), expected, check_like=True
    )


def test_folders_of_mlflow_that_went_through_git_are_read(mlruns):
    (mlruns / "0").mkdir()  # MLflow's default experiment, without runs
    (mlruns / "0/meta.yaml").write_text("experiment_id: '0'\nname: Default\n")
    for folder in sorted(mlruns.rglob("*"), reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    shutil.rmtree(sorted((mlruns / "111").iterdir())[0] / "metrics")
    table = read_place(str(mlruns), "acc", "random_state")
    assert "experiment" not in table and len(table) == 5
    assert pd.isna(table.acc[0]) and table.acc.tolist()[1:] == [0.5, 0.7, 0.5, 0.8]


def test_a_database_with_a_view_is_not_given_to_mlflow(tmp_path):
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("CREATE TABLE experiments (x)")
        database.execute("CREATE TABLE alembic_version (x)")
        database.execute(
            "CREATE VIEW runs AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
            "SELECT x FROM n"
        )
    with refused("computing-database"):
        read_place(str(tmp_path / "a.db"), "acc", "seed")


@pytest.mark.timeout(30)  # without bounds: hours, and all memory
@pytest.mark.parametrize(
    "line", ["a{n}: &a{n} {{<<: [*a{m}, *a{m}]}}", "a{n}: &a{n} [*a{m}, *a{m}]"]
)
def test_descriptions_that_expand_without_bounds_are_refused(mlruns, line):
    lines = ["name: exp", "a0: &a0 {x: 1}", *(line.format(n=n, m=n - 1) for n in range(1, 30))]
    (mlruns / "111/meta.yaml").write_text("\n".join(lines))
    with refused("unreadable-store"):
        read_place(str(mlruns), "acc", "random_state")


@pytest.mark.parametrize("name", ["params/lr", "params", "metrics/acc", "meta.yaml", ""])
def test_links_that_leave_a_folder_of_mlflow_are_refused(mlruns, tmp_path, name):
    run = sorted((mlruns / "111").iterdir())[0]
    shutil.copytree(run, tmp_path / "outside")
    (tmp_path / "outside/params/lr").write_text("secret")
    place = run / name
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
    place.symlink_to(tmp_path / "outside" / name)
    with refused("link-outside"):
        read_place(str(mlruns), "acc", "random_state")


def test_a_link_inside_a_folder_of_mlflow_is_followed(mlruns, tmp_path):
    run = sorted((mlruns / "111").iterdir())[0]
    (run / "params/lr").symlink_to(run / "params/random_state")
    (tmp_path / "link").symlink_to(mlruns)
    assert "params.lr" in read_place(str(tmp_path / "link"), "acc", "random_state")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["params/lr", "metrics/acc", "tags/a"])
def test_a_pipe_in_a_folder_of_mlflow_is_refused(mlruns, name):
    run = sorted((mlruns / "111").iterdir())[0]
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    with refused("no-regular-file"):
        read_place(str(mlruns), "acc", "random_state")


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
