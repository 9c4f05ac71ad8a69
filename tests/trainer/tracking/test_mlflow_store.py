import base64
import contextlib
import http.server
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from loptune.errors import ConfigError, StorageError
from tests.paths import ROOT
from tests.ports import quiet_port
from tests.refusals import refused
from tests.trainer.tracking.store import config_for, context_for, history, runs_of
from trainer.config.tracking import TrackingConfig
from trainer.tracking import mlflow_store
from trainer.tracking.mlflow_store import mlflow_name, prepare_store, tracking_uri
from trainer.tracking.tracker import Tracker


def test_uri_comes_from_config_then_environment_then_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_uri(TrackingConfig(), tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    assert tracking_uri(TrackingConfig(), tmp_path) == "http://localhost:5000"
    assert tracking_uri(TrackingConfig(uri="http://other:1"), tmp_path) == "http://other:1"
    monkeypatch.chdir(tmp_path)
    relative = TrackingConfig(uri="sqlite:///a/b.db")
    assert tracking_uri(relative, tmp_path) == f"sqlite:///{tmp_path}/a/b.db"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    for mark in "%#?":
        with refused("mlflow-path", ConfigError):
            tracking_uri(TrackingConfig(), tmp_path / f"a{mark}41b")


def test_credentials_of_the_environment_reach_the_server_and_no_record(tmp_path, monkeypatch):
    seen = []

    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers.get("Authorization", ""))
            self.send_error(401)

        do_POST = do_GET

        def log_message(self, *arguments):
            pass

    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:hunter2@{address}")
        uri = tracking_uri(TrackingConfig(), tmp_path)
        assert uri == f"http://{address}"
        with pytest.raises(StorageError) as caught:
            Tracker(config_for(None), context_for(tmp_path))
        server.shutdown()
    assert set(seen) == {"Basic " + base64.b64encode(b"me:hunter2").decode()}
    assert "hunter2" not in str(caught.value)
    assert "MLFLOW_TRACKING_PASSWORD" in caught.value.hint
    written = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert written
    assert not any(b"hunter2" in file.read_bytes() for file in written)


@pytest.mark.parametrize(
    ("credentials", "name", "password"),
    [("alice", "alice", "known"), (":token", "me", "token"), ("alice:new", "alice", "new")],
)
def test_credentials_that_the_uri_lacks_stay_in_their_variables(
    tmp_path, monkeypatch, credentials, name, password
):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "known")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"https://{credentials}@host")
    assert tracking_uri(TrackingConfig(), tmp_path) == "https://host"
    assert os.environ["MLFLOW_TRACKING_URI"] == "https://host"
    assert os.environ["MLFLOW_TRACKING_USERNAME"] == name
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == password


def test_the_password_of_a_database_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:hunter2@host/mlflow")
    with refused("password-in-uri", ConfigError) as caught:
        tracking_uri(TrackingConfig(), tmp_path)
    assert "hunter2" not in str(caught.value)


def test_a_trial_never_makes_the_schema(tmp_path):
    with refused("no-mlflow-store", StorageError):
        Tracker(config_for(f"sqlite:///{tmp_path}/mlflow.db"), context_for(tmp_path))
    assert not (tmp_path / "mlflow.db").exists()


def test_a_store_that_is_no_database(tmp_path):
    (tmp_path / "mlflow.db").write_text("not a database " * 100)
    with refused("store-unreadable", StorageError, names=("file is not a database",)):
        prepare_store(f"sqlite:///{tmp_path}/mlflow.db")


def test_a_store_in_a_folder_that_is_not_there(tmp_path):
    with refused("store-not-created", StorageError):
        prepare_store(f"sqlite:///{tmp_path}/no/where/mlflow.db")
    assert not (tmp_path / "no").exists()


def test_a_new_store_is_a_copy_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LOPTUNE_CACHE", str(tmp_path / "cache"))
    prepare_store(f"sqlite:///{tmp_path}/first.db")
    [cached] = (tmp_path / "cache").glob("*/mlflow.db")
    with contextlib.closing(sqlite3.connect(cached)) as database:
        database.execute("CREATE TABLE mark (number INTEGER)")
        assert database.execute("SELECT * FROM experiments").fetchall() == []
    uri = f"sqlite:///{tmp_path}/second.db"
    prepare_store(uri)
    with contextlib.closing(sqlite3.connect(tmp_path / "second.db")) as database:
        assert database.execute("SELECT * FROM mark").fetchall() == []
    client = mlflow_store.connect(uri)
    assert client.get_experiment("0").name == "Default"
    assert client.create_experiment("mine") == "1"


def test_a_new_store_without_a_cache(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("no folder")
    monkeypatch.setenv("LOPTUNE_CACHE", str(tmp_path / "cache"))
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    prepare_store(uri)
    assert mlflow_store.connect(uri).get_experiment("0").name == "Default"
    assert sorted(path.name for path in tmp_path.glob("*mlflow*")) == [
        "mlflow.db",
        "mlflow.db.lock",
    ]


def test_names_that_mlflow_refuses_are_changed():
    from mlflow.utils.validation import _validate_metric_name

    for name in ("eval/accuracy/..", "eval/accuracy/./x", "eval//x", "eval/accuracy/", "a*b"):
        assert mlflow_name(name) != name
        _validate_metric_name(mlflow_name(name))
    assert mlflow_name("eval/accuracy/v1.5") == "eval/accuracy/v1.5"


def test_names_that_mlflow_refuses_stay_different():
    names = ["a?b", "a*b", "a_b", "eval/..", "eval/.", "eval/_", *(f"{'x' * 250}{n}" for n in "12")]
    assert len({mlflow_name(name) for name in names}) == len(names)
    assert max(len(mlflow_name(name)) for name in names) == 250


def test_unreachable_server_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(mlflow_store, "START_LIMIT_S", 1.0)
    with refused("mlflow-request", StorageError) as raised:
        Tracker(config_for(f"http://127.0.0.1:{quiet_port()}"), context_for(tmp_path))
    assert raised.value.exit_code == 4
    assert "--offline" in raised.value.hint


def test_a_full_disk_is_no_server_that_does_not_answer(tmp_path):
    def full():
        raise OSError(28, "No space left on device", str(tmp_path))

    with refused("not-written", StorageError, names=("No space left", " MiB free")):
        mlflow_store.retry(full, f"sqlite:///{tmp_path}/mlflow.db")


def test_locked_database_at_the_start(tmp_path, uri, monkeypatch):
    monkeypatch.setattr(mlflow_store, "LOCK_LIMIT_S", 0.5)
    lock_owner = sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)
    lock_owner.execute("BEGIN EXCLUSIVE")
    with refused("store-unreadable", StorageError, names=("locked",)):
        Tracker(config_for(uri), context_for(tmp_path))
    lock_owner.execute("ROLLBACK")
    lock_owner.close()
    assert Tracker(config_for(uri), context_for(tmp_path)).close()


@pytest.mark.slow
def test_processes_that_open_a_fresh_store_at_once(tmp_path):
    """Four drivers make the schema, then each records a run: no error, nothing lost."""
    script = """
        import sys
        from pathlib import Path
        from tests.trainer.tracking.store import config_for, context_for
        from trainer.tracking.mlflow_store import prepare_store
        from trainer.tracking.tracker import Tracker
        uri, folder, name = sys.argv[1:]
        prepare_store(uri)
        tracker = Tracker(config_for(uri), context_for(Path(folder), name), close_limit_s=60)
        for step in range(40):
            tracker.log({"policy/loss": step, "policy/kl": step}, step)
        sys.exit(0 if tracker.close() else 1)
    """
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), uri, str(tmp_path), f"run-{number}"],
            cwd=ROOT,
            stderr=subprocess.PIPE,
        )
        for number in range(4)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors.decode()
    runs = runs_of(uri)
    assert len(runs) == 4
    for run in runs:
        assert [step for step, _ in history(uri, run.info.run_id, "policy/loss")] == list(range(40))


@pytest.mark.parametrize(
    ("uri", "error", "word"),
    [
        ("http://127.0.0.1:9", "Connection refused", "start the server"),
        ("sqlite:////runs/mlflow.db", "database is locked", "end the program"),
        ("sqlite:////runs/mlflow.db", "out-of-date database schema", "mlflow db upgrade"),
        ("sqlite:////runs/mlflow.db", "no such table: experiments", "mlflow.db away"),
    ],
)
def test_a_file_is_not_told_to_start(uri, error, word):
    file = mlflow_store.sqlite_path(uri)
    hint = mlflow_store._hint(OSError(error), file, records=True)
    assert word in hint and "--offline" in hint
    assert "--offline" not in mlflow_store._hint(OSError(error), file, records=False)
    assert ("server" in hint) == uri.startswith("http")


def test_the_printed_upgrade_is_quoted():
    hint = mlflow_store._hint(OSError("out-of-date"), Path("/my runs/mlflow.db"), records=False)
    assert hint == "run `mlflow db upgrade 'sqlite:////my runs/mlflow.db'`"
