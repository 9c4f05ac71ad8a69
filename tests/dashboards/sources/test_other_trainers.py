"""Files of other trainers and trackers, in the formats that they write, are read and judged."""

import json
import sqlite3
from contextlib import closing

import pytest
from torch.utils.tensorboard import SummaryWriter

from dashboards.judging import judge
from dashboards.sources.run_tables import read_files
from loptune.errors import ConfigError
from tests.paths import ROOT
from tests.refusals import refused

RECORDED = ROOT / "tests/data/other_trainers"
SCORES = {"1e-6": (0.50, 0.52, 0.51), "1e-5": (0.60, 0.63, 0.61)}
LAST_SCORE = {
    "verl": "val-core/openai/gsm8k/reward/mean@1",
    "prime_rl": "eval/gsm8k/all/agent/avg@1",
    "tinker": "test/env/all/correct",
}


def judged(pattern, score, by="lr", baseline=None, **options):
    table = read_files(str(pattern))
    baseline = {"lr": "1e-6"} if baseline is None else baseline
    return judge(table, by=[by], baseline=baseline, score=score, seed="seed", window=1, **options)


@pytest.mark.parametrize("trainer", LAST_SCORE)
def test_json_lines_of_a_trainer_are_judged(trainer, tmp_path):
    lines = (RECORDED / f"{trainer}.jsonl").read_text().splitlines()
    for lr, scores in SCORES.items():
        for seed, score in enumerate(scores):
            place = tmp_path / f"{lr}-s{seed}"
            place.mkdir()
            *earlier, last = map(json.loads, lines)
            last.get("data", last)[LAST_SCORE[trainer]] = score
            text = "".join(json.dumps(row) + "\n" for row in (*earlier, last))
            (place / "metrics.jsonl").write_text(text)
    said = judged(tmp_path / "{lr}-s{seed}" / "metrics.jsonl", LAST_SCORE[trainer])
    assert said.verdict.difference == pytest.approx(0.61333 - 0.51, abs=1e-4)


def test_verls_log_has_a_column_per_metric():
    table = read_files(str(RECORDED / "verl.jsonl"))
    assert table["step"].tolist() == [0, 1, 5]
    assert "actor/entropy" in table
    assert not any(column.startswith("data") for column in table)


def test_json_lines_with_a_column_data_are_no_log_of_verl(tmp_path):
    (tmp_path / "runs.jsonl").write_text('{"step": 1, "data": "gsm8k"}\n')
    assert read_files(str(tmp_path / "runs.jsonl"))["data"].tolist() == ["gsm8k"]


def test_tensorboard_of_nemo_rl_is_judged(tmp_path):
    for lr, scores in SCORES.items():
        for seed, score in enumerate(scores):
            with SummaryWriter(tmp_path / f"{lr}-s{seed}" / "tensorboard") as writer:
                writer.add_scalar("train/loss", 0.1, 1)
                writer.add_scalar("validation/accuracy", 0.4, 0)
                writer.add_scalar("validation/accuracy", score, 10)
    said = judged(tmp_path / "{lr}-s{seed}" / "tensorboard", "validation/accuracy")
    assert said.verdict.difference == pytest.approx(0.61333 - 0.51, abs=1e-4)


def test_local_folders_of_wandb_are_judged(tmp_path):
    for lr, scores in SCORES.items():
        for seed, score in enumerate(scores):
            place = tmp_path / "wandb" / f"offline-run-20261128_{seed}-{lr}" / "files"
            place.mkdir(parents=True)
            summary = {"eval/accuracy": score, "_step": 10, "_runtime": 61.5, "_timestamp": 1.7e9}
            (place / "wandb-summary.json").write_text(json.dumps(summary))
            (place / "config.yaml").write_text(
                f"_wandb:\n  value:\n    cli_version: 0.19.9\nlr:\n  value: {lr}\n"
                f"seed:\n  value: {seed}\n"
            )
    table = read_files(str(tmp_path / "wandb"))
    keys = {key: f"config.yaml:{key}" for key in ("lr", "seed")}
    said = judge(
        table,
        by=[keys["lr"]],
        baseline={keys["lr"]: "1e-6"},
        score="eval/accuracy",
        seed=keys["seed"],
        window=1,
    )
    assert said.verdict.difference == pytest.approx(0.61333 - 0.51, abs=1e-4)


def trackio_project(path, *, identified=True):
    """A project as Trackio 0.36 stores it, or as it did before runs had identities."""
    identity = "run_id TEXT NOT NULL, " if identified else ""
    unique = "run_id" if identified else "run_name"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            f"CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, {identity}"
            "timestamp TEXT NOT NULL, run_name TEXT NOT NULL, step INTEGER NOT NULL, "
            "metrics TEXT NOT NULL)"
        )
        database.execute(
            f"CREATE TABLE configs (id INTEGER PRIMARY KEY AUTOINCREMENT, {identity}"
            f"run_name TEXT NOT NULL, config TEXT NOT NULL, created_at TEXT NOT NULL, "
            f"UNIQUE({unique}))"
        )
        for lr, scores in SCORES.items():
            for seed, score in enumerate(scores):
                name = f"lr-{lr}" if identified else f"lr-{lr}-{seed}"
                run = [f"{lr}{seed}"] if identified else []
                keys = ("run_id, " if identified else "") + "run_name, "
                marks = "?, " * (len(run) + 1)
                for step, value in ((0, "NaN"), (10, score)):
                    content = json.dumps({"eval/accuracy": value, "loss": 0.2}).encode()
                    database.execute(
                        f"INSERT INTO metrics ({keys}timestamp, step, metrics) "
                        f"VALUES ({marks}'2026-08-21T10:00:00+00:00', ?, ?)",
                        (*run, name, step, content),
                    )
                config = {"lr": float(lr), "seed": seed, "_Username": "me", "_Group": None}
                database.execute(
                    f"INSERT INTO configs ({keys}config, created_at) "
                    f"VALUES ({marks}?, '2026-08-21T10:00:00+00:00')",
                    (*run, name, json.dumps(config).encode()),
                )


@pytest.mark.parametrize("identified", [True, False])
def test_a_project_of_trackio_is_judged(identified, tmp_path):
    trackio_project(tmp_path / "project.db", identified=identified)
    before = sorted(path.name for path in tmp_path.iterdir())
    table = read_files(str(tmp_path / "project.db"))
    assert set(table) == {"run", "step", "eval/accuracy", "loss", "config.lr", "config.seed"}
    said = judge(
        table,
        by=["config.lr"],
        baseline={"config.lr": "1e-6"},
        score="eval/accuracy",
        seed="config.seed",
        window=1,
    )
    assert said.verdict.difference == pytest.approx(0.61333 - 0.51, abs=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_run_of_trackio_without_metrics_is_a_failed_run(tmp_path):
    trackio_project(tmp_path / "project.db")
    with closing(sqlite3.connect(tmp_path / "project.db")) as database, database:
        database.execute("DELETE FROM metrics WHERE run_id = '1e-60'")
    table = read_files(str(tmp_path / "project.db"))
    (row,) = table[table["step"].isna()].to_dict("records")
    assert (row["run"], row["config.seed"]) == ("lr-1e-6 (1e-60)", 0)


def test_a_database_of_others_is_refused(tmp_path):
    with closing(sqlite3.connect(tmp_path / "other.db")) as database, database:
        database.execute("CREATE TABLE metrics (id INTEGER)")
    with refused("unsupported-file-type", ConfigError) as caught:
        read_files(str(tmp_path / "other.db"))
    assert "Trackio" in caught.value.hint


def test_a_damaged_database_is_named(tmp_path):
    trackio_project(tmp_path / "project.db")
    content = (tmp_path / "project.db").read_bytes()
    (tmp_path / "cut.db").write_bytes(content[: len(content) // 2])
    with refused("unsupported-file-type", ConfigError):
        read_files(str(tmp_path / "cut.db"))
