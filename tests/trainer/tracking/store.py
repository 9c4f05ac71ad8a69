"""MLflow stores for tests: a prepared SQLite file and a server process on loopback."""

import atexit
import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from loptune.files import read_records
from tests.ports import quiet_port
from trainer.config.schema import TrainConfig
from trainer.tracking.mlflow_store import prepare_store
from trainer.types import RunContext


@functools.cache
def _template() -> Path:
    folder = tempfile.mkdtemp(prefix="loptune-store-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "mlflow.db"
    prepare_store(f"sqlite:///{path}")
    return path


def sqlite_store(folder: Path) -> str:
    """A fresh prepared store; copied, because making the schema takes seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(_template(), folder / "mlflow.db")
    return f"sqlite:///{folder / 'mlflow.db'}"


class Server:
    """`mlflow server` on a port of its own; can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = quiet_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        sqlite_store(folder)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        command += [
            "--backend-store-uri",
            f"sqlite:///{self.folder / 'mlflow.db'}",
            "--workers",
            "1",
        ]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        log = (self.folder / "server.log").open("ab")
        # Without its job runners, further processes that import MLflow; `trainer ui` leaves them
        # out, too.
        quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        environment = {**os.environ, **quiet}
        self._process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
            cwd=self.folder,
        )
        experiments = "/api/2.0/mlflow/experiments/search?max_results=1"  # opens the store
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{self.uri}{experiments}", timeout=20).read()
                return
            except OSError:
                assert self._process.poll() is None, (self.folder / "server.log").read_text()
                assert time.monotonic() < deadline, (self.folder / "server.log").read_text()
                time.sleep(0.2)

    def kill(self) -> None:
        """SIGKILL the server and its workers (its own process group); return when the port
        is free.
        """
        if self._process is None:
            return
        os.killpg(self._process.pid, 9)
        self._process.wait()
        self._process = None
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_server(("127.0.0.1", self.port)).close()
                return
            except OSError:
                assert time.monotonic() < deadline, (
                    "a worker of the killed server still holds its port"
                )
                time.sleep(0.05)


def config_for(uri: str | None, **tracking: Any) -> TrainConfig:
    return TrainConfig.model_validate({"tracking": {"uri": uri, **tracking}})


def context_for(folder: Path, name: str = "run-1", **tags: str) -> RunContext:
    return RunContext(
        run_dir=folder / "trials" / name,
        runs_dir=folder,
        experiment="exp",
        run_name=name,
        tags=tags,
    )


def runs_of(uri: str, experiment: str = "exp") -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    return list(client.search_runs([client.get_experiment_by_name(experiment).experiment_id]))


def history(uri: str, run_id: str, metric: str) -> list[tuple[int, float]]:
    """The newest value of each step."""
    from mlflow import MlflowClient

    points = sorted(
        MlflowClient(uri).get_metric_history(run_id, metric), key=lambda point: point.timestamp
    )
    return sorted({point.step: point.value for point in points}.items())


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of a run's ``metrics.jsonl``."""
    return read_records(run_dir / "metrics.jsonl")
