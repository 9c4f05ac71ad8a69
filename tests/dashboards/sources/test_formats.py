"""Files of other programs, written as those programs write them."""

import gzip
import json
import os
import sys

import pandas as pd
import pytest

from dashboards import judge
from dashboards.sources.run_tables import NOTES, read_files
from loptune.errors import UserError
from tests.refusals import refused

PLAIN = "model,seed,acc\nA,0,0.5\nB,1,0.25\n"
ROWS = [{"model": "A", "seed": 0, "acc": 0.5}, {"model": "B", "seed": 1, "acc": 0.25}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.csv", PLAIN),
        ("upper.CSV", PLAIN),
        ("tabs.tsv", PLAIN.replace(",", "\t")),
        ("tabs.csv", PLAIN.replace(",", "\t")),
        ("semicolons.csv", PLAIN.replace(",", ";")),
        ("decimal.csv", PLAIN.replace(",", ";").replace("0.", "0,")),
        ("spaced.csv", PLAIN.replace(",", ",    ")),
        ("index.csv", ",model,seed,acc\n0,A,0,0.5\n1,B,1,0.25\n"),
        ("mark.csv", "\ufeff" + PLAIN),
        ("packed.csv.gz", gzip.compress(PLAIN.encode(), mtime=0)),
        ("wide.csv", PLAIN.encode("utf-16")),
        ("comment.csv", '#{"t_start": 1.5, "env_id": "Ant"}\n' + PLAIN),
        ("progress.txt", PLAIN.replace(",", "\t")),
        ("blanks.txt", PLAIN.replace(",", "   ")),
        ("records.json", json.dumps(ROWS)),
        ("lines.json", "\n".join(map(json.dumps, ROWS))),
        ("split.json", pd.DataFrame(ROWS).to_json(orient="split")),
        ("columns.json", pd.DataFrame(ROWS).to_json()),
        ("lists.json", pd.DataFrame(ROWS).to_json(orient="columns")),
        ("arrays.json", json.dumps(pd.DataFrame(ROWS).to_dict("list"))),
    ],
)
def test_tables_of_text_have_the_same_rows(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    table = read_files(str(path))
    assert table.to_dict("records") == ROWS
    assert ("UTF-16" in str(table.attrs[NOTES])) == (name == "wide.csv")


def test_percentages_are_numbers_in_percent(tmp_path):
    (tmp_path / "a.csv").write_text("acc,text\n82.24%,5%\n,high\n")
    table = read_files(str(tmp_path / "a.csv"))
    assert table.acc[0] == 82.24 and table.text.tolist() == ["5%", "high"]


def test_episodes_of_a_monitor_have_the_step_at_which_they_end(tmp_path):
    (tmp_path / "0.monitor.csv").write_text('#{"env_id": "Ant"}\nr,l,t\n1.5,10,0.1\n2.5,20,0.2\n')
    assert read_files(str(tmp_path / "*.monitor.csv")).step.tolist() == [10, 30]


def test_ultralytics_tables_have_names_without_spaces(tmp_path):
    (tmp_path / "results.csv").write_text("   epoch,   metrics/mAP50(B)\n     1,   0.40\n")
    assert read_files(str(tmp_path / "results.csv")).to_dict("records") == [
        {"epoch": 1, "metrics/mAP50(B)": 0.4}
    ]


def test_a_trainer_state_has_a_row_per_step(tmp_path):
    history = [
        {"step": 5, "loss": 0.5},
        {"step": 10, "loss": 0.4},
        {"step": 10, "eval_loss": 0.3},
        {"step": 10, "eval_loss": 0.25, "train_runtime": 3.0},
    ]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    table = read_files(str(tmp_path / "trainer_state.json"))
    assert table.step.tolist() == [5, 10] and table.loss.tolist() == [0.5, 0.4]
    assert table.eval_loss.tolist()[1] == 0.25


def test_mappings_are_one_row_or_records(tmp_path):
    (tmp_path / "all_results.json").write_text(json.dumps({"eval_acc": 0.5, "epoch": 3.0}))
    assert read_files(str(tmp_path / "all_results.json")).eval_acc.tolist() == [0.5]
    (tmp_path / "named.json").write_text(json.dumps({"a": {"acc": 0.5}, "b": {"acc": 0.6}}))
    assert read_files(str(tmp_path / "named.json")).name.tolist() == ["a", "b"]
    results = {"results": {"gsm8k": {"alias": "gsm8k", "acc,none": 0.5}}, "config": {"seed": 1}}
    (tmp_path / "results_1.json").write_text(json.dumps({**results, "configs": {}}))
    row = read_files(str(tmp_path / "results_1.json")).to_dict("records")[0]
    assert row["results.gsm8k.acc"] == 0.5 and row["config.seed"] == 1


def test_event_files_have_a_column_per_tag(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    for name, last in (("adam-s0", 0.5), ("sgd-s1", 0.75)):
        for first in (0, 1):  # the second file is of a resumed run
            with SummaryWriter(tmp_path / name, filename_suffix=f".{first}") as writer:
                for step in range(first, 3):
                    writer.add_scalar("acc", last if step == 2 else 0.1, step)
    table = read_files(str(tmp_path / "{opt}-s{seed}/events*"))
    assert table.columns.tolist() == ["step", "acc", "opt", "seed"]
    assert table.acc.tolist() == pytest.approx([0.1, 0.1, 0.5, 0.1, 0.1, 0.75])
    whole = read_files(str(tmp_path))
    assert whole.run.unique().tolist() == ["adam-s0", "sgd-s1"] and len(whole) == 6
    (tmp_path / "rmsprop-s0").mkdir()
    (tmp_path / "rmsprop-s0/events.out.tfevents.1.host.1.0").touch()
    (tmp_path / "rmsprop-s0/hparams.yaml").write_text("lr: 0.1")
    crashed = read_files(str(tmp_path / "{opt}-s{seed}/events*"))
    assert crashed.opt.tolist().count("rmsprop") == 1 and crashed.acc.isna().sum() == 1
    assert "rmsprop-s0" in crashed.attrs[NOTES][0]
    assert read_files(str(tmp_path))["hparams.yaml:lr"].dropna().tolist() == [0.1]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/events.out.tfevents.1.host.1.0").touch()
    with refused("no-scalars"):
        read_files(str(tmp_path / "empty/events*"))


def test_event_files_without_tensorboard_name_the_extra(tmp_path, monkeypatch):
    (tmp_path / "events.out.tfevents.1").touch()
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with refused("missing-extra") as caught:
        read_files(str(tmp_path / "events*"))
    assert "loptune[tensorboard]" in caught.value.hint


def test_a_download_of_tensorboard_keeps_step_and_value(tmp_path):
    (tmp_path / "run-a.csv").write_text("Wall time,Step,Value\n1700000000.5,10,0.5\n")
    assert read_files(str(tmp_path / "run-a.csv")).to_dict("records") == [
        {"Step": 10, "Value": 0.5}
    ]


def test_lines_of_a_wandb_chart_become_runs(tmp_path):
    (tmp_path / "chart.csv").write_text(
        '"Step","a - acc","a - acc__MIN","a - acc__MAX","b - x - acc","b - x - acc__MIN",'
        '"b - x - acc__MAX"\n1,0.5,0.4,0.6,,,\n2,,,,0.7,0.7,0.7\n'
    )
    assert read_files(str(tmp_path / "chart.csv")).to_dict("records") == [
        {"Name": "a", "step": 1, "acc": 0.5},
        {"Name": "b - x", "step": 2, "acc": 0.7},
    ]


def test_mappings_in_cells_of_an_export_become_columns(tmp_path):
    pd.DataFrame(
        {
            "name": ["a", "b"],
            "config": [str({"lr": 0.1, "tags": [1, 2]}), str({"lr": 0.2, "x": float("nan")})],
            "summary": [json.dumps({"acc": 0.5, "_wandb": {"runtime": 3}}), "{}"],
        }
    ).to_csv(tmp_path / "project.csv")
    table = read_files(str(tmp_path / "project.csv"))
    assert table["config.lr"].tolist() == [0.1, 0.2]
    assert table["summary.acc"].tolist()[0] == 0.5 and pd.isna(table["summary.acc"][1])
    assert not any("_wandb" in column for column in table)


def test_local_wandb_runs_are_a_row_each(tmp_path):
    for number, lr in enumerate((0.1, 0.2)):
        files = tmp_path / f"wandb/run-2026_{number}/files"
        files.mkdir(parents=True)
        (files / "config.yaml").write_text(
            f"_wandb:\n  value: {{}}\nwandb_version: 1\nlr:\n  desc: null\n  value: {lr}\n"
        )
        (files / "wandb-summary.json").write_text(json.dumps({"acc": lr + 0.5}))
    table = read_files(str(tmp_path / "wandb"))
    assert table.columns.tolist() == ["acc", "run", "config.yaml:lr"]
    assert table["config.yaml:lr"].tolist() == [0.1, 0.2]
    assert len(read_files(str(tmp_path / "wandb/run-*/files/wandb-summary.json"))) == 2


@pytest.mark.parametrize(
    ("path", "content", "column", "value"),
    [
        (".hydra/config.yaml", "optim: {lr: 0.1}\ntags: [a, b]", "config.yaml:optim.lr", 0.1),
        (".hydra/overrides.yaml", "- +optim.lr=0.1\n- seed=1", "overrides.yaml:optim.lr", "0.1"),
        ("params.json", '{"env": {"name": "Ant"}}', "params.json:env.name", "Ant"),
        (
            "hparams.yaml",
            "path: !!python/object/apply:pathlib.Path [a]",
            "hparams.yaml:path",
            "['a']",
        ),
        ("args.yaml", "imgsz: 640", "args.yaml:imgsz", 640),
        ("config.json", '{"seed": 3}', "config.json:seed", 3),
        ("config.yaml", "a: &x 1\nb: *x", "config.yaml:b", 1),
    ],
)
@pytest.mark.parametrize("up", ["", "../"])
def test_settings_beside_a_file_or_one_folder_up_are_columns(
    tmp_path, path, content, column, value, up
):
    folder = tmp_path / "run/logs"
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text("step,acc\n1,0.5\n")
    settings = folder / up / path
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(content)
    assert read_files(str(folder / "metrics.csv"))[column].tolist() == [value]


def test_settings_that_expand_without_bounds_are_refused(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,acc\n1,0.5\n")
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    with refused("unreadable-file"):
        read_files(str(tmp_path / "metrics.csv"))


@pytest.mark.parametrize("journal", [False, True])
def test_trials_of_optuna_are_a_row_each(tmp_path, journal):
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = tmp_path / ("journal.log" if journal else "study.db")
    storage = (
        optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        if journal
        else f"sqlite:///{path}"
    )
    study = optuna.create_study(study_name="s", storage=storage)
    study.enqueue_trial({"lr": 0.25})
    study.optimize(lambda trial: trial.suggest_float("lr", 0, 1), n_trials=1)
    study.tell(study.ask(), state=optuna.trial.TrialState.FAIL)
    before = path.read_bytes()
    table = read_files(str(path))
    assert table.value.tolist()[0] == 0.25 and table.params_lr.tolist()[0] == 0.25
    assert table.state.tolist() == ["COMPLETE", "FAIL"] and set(table.study) == {"s"}
    assert path.read_bytes() == before


def test_reading_a_study_closes_its_connections(tmp_path, monkeypatch):
    import optuna
    from sqlalchemy import Engine

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = tmp_path / "study.db"
    optuna.create_study(storage=f"sqlite:///{path}").add_trial(optuna.trial.create_trial(value=1.0))
    disposed = []
    monkeypatch.setattr(Engine, "dispose", lambda engine: disposed.append(engine.url.database))
    read_files(str(path))
    assert len(disposed) == 2 and len(set(disposed)) == 1  # the check of the schema, the trials


def test_studies_of_an_older_optuna_are_read(tmp_path):
    import sqlite3

    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = tmp_path / "study.db"
    study = optuna.create_study(storage=f"sqlite:///{path}")
    study.optimize(lambda trial: trial.suggest_float("lr", 0, 1), n_trials=1)
    with sqlite3.connect(path) as database:  # as Optuna 3.0 left it
        database.execute("DROP INDEX ix_trials_study_id")
        database.execute("UPDATE alembic_version SET version_num = 'v3.0.0.d'")
    before = path.read_bytes()
    assert len(read_files(str(path))) == 1 and path.read_bytes() == before


def test_a_file_with_only_a_header_is_a_failed_run(tmp_path):
    for name, row in (("a-s0", "1,0.5\n"), ("a-s1", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "progress.csv").write_text(f"step,acc\n{row}")
    for place in (tmp_path, tmp_path / "{opt}-s{seed}/progress.csv"):
        table = read_files(str(place))
        assert table.acc.isna().tolist() == [False, True]
        assert any("a-s1" in note for note in table.attrs[NOTES])
    with refused("unreadable-file"):
        read_files(str(tmp_path / "a-s1/progress.csv"))


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.pkl", "a.xlsx", "a.0", "a"])
def test_what_is_not_read_is_named(tmp_path, name):
    (tmp_path / name).touch()
    with refused("unsupported-file-type"):
        read_files(str(tmp_path / name))


def test_the_results_below_a_folder_are_read_with_their_paths(tmp_path):
    for run in ("a-s0", "a-s1"):
        (tmp_path / "logs" / run).mkdir(parents=True)
        (tmp_path / "logs" / run / "results.csv").write_text("step,acc\n1,0.5\n")
        (tmp_path / "logs" / run / "config.json").write_text('{"lr": 0.1}')
    (tmp_path / "judged").mkdir()
    (tmp_path / "judged" / "results.csv").write_text(PLAIN)
    (tmp_path / "judged" / "report.html").touch()
    table = read_files(str(tmp_path))
    assert table.run.tolist() == ["logs/a-s0", "logs/a-s1"]
    assert table["config.json:lr"].tolist() == [0.1, 0.1]
    assert "*/*/results.csv" in str(table.attrs[NOTES])
    flat = tmp_path / "flat"
    flat.mkdir()
    for name in ("a-s0.csv", "a-s1.csv"):
        (flat / name).write_text("step,acc\n1,0.5\n")
    assert read_files(str(flat)).run.tolist() == ["a-s0", "a-s1"]
    (tmp_path / "empty").mkdir()
    with refused("folder-without-pattern"):
        read_files(str(tmp_path / "empty"))


def test_a_pattern_may_begin_at_this_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-s0").mkdir()
    (tmp_path / "a-s0" / "results.csv").write_text(PLAIN)
    assert read_files("./{algo}-s{number}//results.csv").algo.tolist() == ["a", "a"]


def test_another_encoding_is_named(tmp_path):
    (tmp_path / "a.csv").write_bytes("model,acc\nstraße,1\n".encode("latin-1"))
    with refused("not-utf-8"):
        read_files(str(tmp_path / "a.csv"))
    (tmp_path / "b.csv").write_bytes(PLAIN.replace("A", "ß").encode("utf-16-le") + b"\xff\xdf")
    with refused("not-utf-8") as caught:
        read_files(str(tmp_path / "b.csv"))
    assert "UTF-16" in caught.value.what


def test_a_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(PLAIN.encode() * 100))
    monkeypatch.setattr("dashboards.sources.content.read_text.__defaults__", (100,))
    with refused("file-too-large"):
        read_files(str(tmp_path / "a.csv.gz"))


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.db", "events.out.tfevents.1"])
def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path, name, monkeypatch):
    (tmp_path / name).write_bytes(bytes(2000))
    monkeypatch.setattr("dashboards.sources.content.MAX_BYTES", 1000)
    with refused("file-too-large"):
        read_files(str(tmp_path / name))


def repeated_text(path, rows, length):
    """Write a Parquet file that stores one text for all of its rows."""
    import pyarrow
    from pyarrow.parquet import write_table

    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, "int32"), ["x" * length])
    table = pyarrow.table({"name": text, "acc": [0.5] * rows})
    write_table(
        table, path, compression="zstd", store_schema=False
    )  # read as texts, not categories


def test_a_parquet_file_may_not_take_more_memory_than_a_table_of_its_rows(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    repeated_text(path, rows=10, length=1_000)
    assert len(read_files(str(path))) == 10
    monkeypatch.setattr("dashboards.sources.content.MAX_BYTES", 100_000)
    repeated_text(path, rows=10_000, length=10)
    assert path.stat().st_size < 10_000
    with refused("file-too-large"):
        read_files(str(path))


def test_a_parquet_file_whose_texts_take_too_much_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    repeated_text(path, rows=600, length=1_000_000)
    monkeypatch.setattr("dashboards.sources.formats._PARQUET_MIB", 300)
    assert path.stat().st_size < 100_000
    with refused("unreadable-file"):
        read_files(str(path))


def test_a_commented_header_is_a_header(tmp_path):
    (tmp_path / "a.csv").write_text("# written by me\n# seed,acc\n0,0.5\n")
    assert read_files(str(tmp_path / "a.csv")).to_dict("records") == [{"seed": 0, "acc": 0.5}]
    (tmp_path / "b.txt").write_text("# seed acc\n0 0.5\n")
    assert read_files(str(tmp_path / "b.txt")).to_dict("records") == [{"seed": 0, "acc": 0.5}]


def test_mappings_to_records_and_by_seed_are_rows(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"a": [{"seed": 0, "acc": 0.5}], "b": [{"seed": 1, "acc": 0.6}]}))
    assert read_files(str(path)).to_dict("records") == [
        {"name": "a", "seed": 0, "acc": 0.5},
        {"name": "b", "seed": 1, "acc": 0.6},
    ]
    path.write_text(json.dumps({"a": {"42": 0.5, "43": 0.6}, "b": {"42": 0.7, "43": 0.8}}))
    assert read_files(str(path)).columns.tolist() == ["index", "a", "b"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv.gz", gzip.compress(PLAIN.encode() * 50, mtime=0)[:60]),
        ("a.csv.gz", gzip.compress(PLAIN.encode() * 50, mtime=0)[:30] + b"damaged" * 9),
        ("a.parquet", b"PAR1damagedPAR1"),
        ("a.json", b"[" * 100_000),
        ("a.json", b'"text"'),
        ("a.jsonl", b'{"acc": '),
        ("a.csv", b'model,"acc\n1,2\n'),
        ("a.db", b"SQLite format 3\0damaged"),
        ("events.out.tfevents.1", b"damaged" * 20),
    ],
)
def test_damaged_files_are_named(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_files(str(path))
    assert name in caught.value.where


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "name", ["a.csv", "a.json", "a.jsonl", "a.db", "a.log", "a.parquet", "events.out.tfevents.1"]
)
def test_a_pipe_is_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with refused("no-regular-file"):
        read_files(str(tmp_path / name))


@pytest.mark.timeout(30)
def test_a_pipe_beside_event_files_is_refused(tmp_path):
    os.mkfifo(tmp_path / "events.out.tfevents.2")
    (tmp_path / "events.out.tfevents.1").touch()
    with refused("no-regular-file"):
        read_files(str(tmp_path))


def test_a_tensor_is_a_scalar_by_its_shape(tmp_path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.summary.writer.record_writer import RecordWriter

    plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
    for name, sizes in (("one", [1, 1]), ("many", [1 << 31, 4])):
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in sizes])
        tensor = TensorProto(dtype=1, float_val=[0.5], tensor_shape=shape)
        value = Summary.Value(tag="acc", tensor=tensor, metadata=plugin)
        (tmp_path / name).mkdir()
        with (tmp_path / name / "events.out.tfevents.1").open("wb") as file:
            event = Event(step=3, summary=Summary(value=[value]))
            RecordWriter(file).write(event.SerializeToString())
    assert read_files(str(tmp_path / "one/events*")).acc.tolist() == [0.5]
    with refused("unreadable-file"):
        read_files(str(tmp_path / "many/events*"))


@pytest.mark.timeout(60)  # quadratic: minutes
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", f"a,b\n{'1' * 120_000},2\n"),
        ("a.csv", f"a,b\n{'1' * 120_000}x,2\n"),
        ("a.txt", f"a b\n{' ' * 120_000}x 2\n"),
        ("a.csv", ",".join(f"c{n}" for n in range(60_000)) + "\n" + "1," * 59_999 + "1\n"),
        ("a.csv", f"Step,{' - a' * 20_000}x,b - acc\n1,2,3\n"),
        ("a.jsonl", json.dumps({f"c{n}": n for n in range(60_000)}) + "\n"),
    ],
)
def test_reading_takes_time_in_proportion_to_the_size(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert len(read_files(str(tmp_path / name))) == 1


def test_lists_in_a_parquet_file_are_lists_as_in_json(tmp_path):
    rows = []
    for loss, scores in [("a", [0.5, 0.51, 0.52]), ("b", [0.6, 0.62, 0.61])]:
        rows.append(
            {"loss": loss, "acc": scores, "tags": ["x", loss], "more": {"nested": [[1], [2, 3]]}}
        )
    pd.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    table = read_files(str(tmp_path / "a.parquet"))
    assert table.to_dict("records") == rows
    judged = judge(table, by=["loss"], baseline={"loss": "a"}, score="acc")
    assert [arm.runs for arm in judged.arms] == [3, 3]


@pytest.mark.parametrize("header", ["grpo dapo dapo", "grpo  dapo   dapo "])
def test_a_repeated_column_between_spaces_is_refused(tmp_path, header):
    (tmp_path / "a.txt").write_text(f"{header}\n0.5 0.6 0.6\n")
    with refused("duplicate-column", names=["dapo"]):
        read_files(str(tmp_path / "a.txt"))


def test_spaces_before_quotes_are_no_part_of_a_value(tmp_path):
    (tmp_path / "a.csv").write_text('name, acc\n "a,b", 0.5\n')
    assert read_files(str(tmp_path / "a.csv")).to_dict("records") == [{"name": "a,b", "acc": 0.5}]
