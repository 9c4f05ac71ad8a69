"""The commands of docs/guides/judge.md, on runs as their programs record them."""

import json
import os
import re
import sqlite3
from contextlib import closing

import mlflow
import pandas as pd
import pytest
from torch.utils.tensorboard import SummaryWriter

from tests.dashboards.test_judging import SCORES, runs, tuned_runs
from tests.paths import ROOT
from tests.test_docs import commands
from tests.trainer.tracking.store import sqlite_store

PAGE = (ROOT / "docs/guides/judge.md").read_text(encoding="utf-8")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


def log_run(client, experiment, params, points):
    run = client.create_run(experiment).info.run_id
    for name, value in params.items():
        client.log_param(run, name, value)
    for name, values in points.items():
        for step, value in enumerate(values):
            client.log_metric(run, name, value, step=step)
    client.set_terminated(run)


def write_runs(place):
    """The files and stores that the page's commands read."""
    table = runs().assign(lr=1e-6).rename(columns={"acc": "accuracy"})
    table.to_csv(place / "runs.csv", index=False)
    named = table.rename(columns={"accuracy": "eval/accuracy"}).assign(Name=table.loss)
    export = named.drop(columns="Name").assign(State="finished", Name="a", Created="2026")
    export.loc[export.index[-1], ["State", "eval/accuracy"]] = ["crashed", None]
    export.to_csv(place / "wandb_export.csv", index=False)
    table.drop(columns=["seed", "lr"]).to_csv(place / "repeats.csv", index=False)
    write_runs_of_other_programs(place)
    trl = mlflow.MlflowClient(f"sqlite:///{place}/mlflow.db")
    experiment = trl.create_experiment("trl")
    trl.set_terminated(trl.create_run(experiment).info.run_id)  # without a seed, as a parent run
    for loss, row in SCORES.items():
        for seed, score in enumerate(row):
            record = place / f"out/{loss}-s{seed}/metrics.jsonl"
            record.parent.mkdir(parents=True)
            record.write_text(json.dumps({"step": 5, "eval/accuracy": score}))
            params = {"loss_type": loss, "seed": seed, "output_dir": f"out/{loss}"}
            log_run(
                trl, experiment, params, {"eval_reward": [0.1, score, score, score], "loss": [1.0]}
            )
    other = mlflow.MlflowClient(sqlite_store(place / "store"))
    (place / "store/mlflow.db").rename(place / "other.db")
    other = mlflow.MlflowClient(f"sqlite:///{place}/other.db")
    ppo = other.create_experiment("ppo")
    for row in tuned_runs().itertuples():
        params = {
            "clip": {"grpo": 0.2, "dapo": 0.3}[row.loss],
            "lr": 0.001,
            "epochs": row.lr,
            "seed": row.seed,
        }
        log_run(other, ppo, params, {"return": [row.acc]})


def write_runs_of_other_programs(place):
    """A run of each program that the page names, for every loss and seed."""
    chart = pd.DataFrame({"Step": [5, 10]})
    store = mlflow.MlflowClient(write_file_store(place))
    experiment = store.create_experiment("exp")
    for loss, row in SCORES.items():
        for seed, score in enumerate(row):
            name = f"{loss}-s{seed}"
            chart[f"{name} - eval/accuracy"] = score
            chart[f"{name} - eval/accuracy__MIN"] = score
            log_run(store, experiment, {"loss": loss, "seed": seed}, {"accuracy": [score]})
            settings = {
                key: {"desc": None, "value": value}
                for key, value in {"loss": loss, "seed": seed}.items()
            }
            summary = {"eval/accuracy": score, "_step": 10}
            write(place / f"wandb/run-{name}/files/config.yaml", json.dumps(settings))
            write(place / f"wandb/run-{name}/files/wandb-summary.json", json.dumps(summary))
            with SummaryWriter(place / "logs" / name) as writer:
                for step in (5, 10):
                    writer.add_scalar("eval/accuracy", score, step)
            download = f"Wall time,Step,Value\n1700000000.5,5,{score}\n1700000001.5,10,{score}\n"
            write(place / f"run-{name}-tag-accuracy.csv", download)
            history = [{"step": 5, "loss": 0.5}, {"step": 10, "eval_reward": score}]
            write(place / f"hf/{name}/trainer_state.json", json.dumps({"log_history": history}))
            run = place / f"multirun/2026-01-01/12-00-00/{name}"
            write(run / ".hydra/config.yaml", f"algo: {{loss: {loss}}}\nseed: {seed}\n")
            write(run / "metrics.csv", f"epoch,step,val_acc\n0,5,{score}\n1,10,{score}\n")
    chart.to_csv(place / "wandb_chart.csv", index=False)
    marks = runs().assign(length=[800, 802, 801, 799, 801, 801, 799, 801, 800, 801, 802, 799])
    for name in ("math500", "minerva", "amc"):
        marks[name] = marks.acc
    marks.drop(columns="acc").to_csv(place / "benchmarks.csv", index=False)
    curves = pd.concat([runs().assign(step=step) for step in (10, 20, 30)])
    curves["tokens"] = curves.step * curves.loss.map({"grpo": 10, "dapo": 17, "gspo": 10})
    curves.rename(columns={"acc": "accuracy"}).to_csv(place / "curves.csv", index=False)
    with SummaryWriter(place / "logs/sgd-test") as writer:
        writer.add_scalar("eval/accuracy", 0.9, 5)


def write_file_store(place):
    """The URI of a store as MLflow 2 wrote it."""
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    return (place / "mlruns").as_uri()


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def outputs(page):
    """The indented lines that follow each command of a page, without commands: what it prints."""
    shown = []
    text = page.replace("\\\n", " ")
    for line in re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE):
        if line.startswith("sweep judge"):
            shown.append([])
        elif not line.startswith(("pip ", "MLFLOW_", "import ", "verdict", "print")):
            shown[-1].append(" ".join(line.split()))
    return shown


def test_the_commands_of_the_page_print_what_it_shows(place, typed):
    write_runs(place)
    examples = [
        (words, lines_shown)
        for words, lines_shown in zip(commands(PAGE), outputs(PAGE), strict=True)
        if not words[2].startswith("wandb:")  # which asks a service
    ]
    assert len(examples) == 16 and sum(len(lines_shown) for _, lines_shown in examples) > 20
    for (program, command, *arguments), lines_shown in examples:
        printed = typed(f"{program} {command}", *arguments, "--runs-dir", "runs")
        lines = printed.splitlines()
        assert lines[-1] == "report: judged/report.html"
        assert (place / "judged/report.html").is_file()
        if "--tuned" in arguments:
            assert "+0.100" not in lines[0]
        else:
            assert "=dapo: +0.100" in lines[0], arguments
        plain = " ".join(printed.split())
        for line in lines_shown:
            assert line in plain, (arguments, line)


def test_numbers_for_scripts_and_errors(place, typed):
    pd.concat([runs(), runs().assign(seed=runs().seed + 4)]).to_csv("runs.csv", index=False)
    options = "--by loss --baseline loss=grpo --score acc --seed seed --fresh --runs-dir runs"
    line = f"sweep judge runs.csv {options}"
    printed = json.loads(typed(f"{line} --json"))
    assert printed["verdict"]["kind"] == "tested" and printed["verdict"]["claim"] == "evidence"
    (place / "taken").touch()
    sqlite_store(place / "runs")
    for refused, code, message in (
        (f"{line} --where seed=0", 2, "[one-seed]"),
        (f"{line} --where seeds=0", 2, "did you mean seed?"),
        (f"{line} --baseline grpo", 2, "[not-a-condition]"),
        (f"{line} --where loss=grpo,loss=dapo", 2, "[second-value]"),
        (f"{line} --output taken", 4, "cannot write the report"),
        (f"sweep judge mlflow:none {options}", 3, "[no-experiment]"),
        (f"sweep judge mlflow:none {options} --store sqlite:///no.db", 4, "[no-mlflow-store]"),
    ):
        assert message in typed(refused, code=code)
    assert not (place / "no.db").exists()


@pytest.mark.parametrize("name", ["a%20b.db", "a?b.db", "a#b.db", "a b.db"])
def test_a_store_is_the_file_of_exactly_this_name(place, typed, name):
    sqlite_store(place / "runs")
    (place / "runs" / "mlflow.db").rename(place / "runs" / name)
    before = sorted(place.rglob("*"))
    options = ["--by", "loss", "--score", "acc", "--store", place / "runs" / name]
    printed = typed("sweep judge mlflow:none", *options, code=3)
    assert "[no-experiment]" in printed
    assert sorted(place.rglob("*")) == before


def test_an_unreadable_database_keeps_the_hint_of_its_fault(place, typed):
    options = "--by loss --score acc --store bad.db"
    (place / "bad.db").write_text("no database")
    assert "restore the file" in typed(f"sweep judge mlflow:e {options}", code=4)
    (place / "bad.db").unlink()
    sqlite_store(place / "runs")
    old = place / "runs" / "mlflow.db"
    with closing(sqlite3.connect(old)) as database:
        database.execute("UPDATE alembic_version SET version_num = 'c48cb773bb87'")
        database.commit()
    printed = typed(f"sweep judge mlflow:e --by loss --score acc --store {old}", code=4)
    assert f"mlflow db upgrade sqlite:///{old}" in printed
    assert "--offline" not in printed
