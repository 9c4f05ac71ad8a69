"""`sweep ui` serves the sweep's own store to this machine alone."""

import http.client
import os
import signal
import socket
from pathlib import Path

import psutil
import pytest

from sweep.record.parent_run import open_parent_run
from tests.run_cli import run_cli, start_cli
from tests.sockets import listening, open_to_others
from tests.sweep.ended_sweeps import SCORES, write_sweep
from tests.sweep.harness import wait_until
from trainer.tracking.mlflow_store import prepare_store

pytestmark = pytest.mark.slow


def ask(
    port: int, path: str, headers: dict[str, str], method: str = "GET", body: str | None = None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def answers(port: int) -> bool:
    try:
        return ask(port, "/health", {})[0] == 200
    except OSError:
        return False


def test_the_ui_shows_the_sweep_and_refuses_strangers(tmp_path: Path) -> None:
    write_sweep(tmp_path, "demo", SCORES)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    prepare_store(uri)
    open_parent_run(uri, "demo", "demo", {}, {})
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "here").mkdir()
    with start_cli(
        "sweep", "ui", "demo", "--runs-dir", tmp_path, "--port", port, cwd=tmp_path / "here"
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(f"MLflow: http://127.0.0.1:{port}/#/experiments/1/runs?")
            wait_until(lambda: answers(port), timeout=90)
            search = "/api/2.0/mlflow/experiments/get-by-name?experiment_name=demo"
            status, body = ask(port, search, {})
            assert (status, '"name": "demo"' in body) == (200, True)
            assert ask(port, search, {"Host": "evil.example"})[0] == 403
            strange = {"Origin": "http://evil.example", "Content-Type": "application/json"}
            create = "/api/2.0/mlflow/experiments/create"
            assert ask(port, create, strange, "POST", '{"name": "planted"}')[0] == 403
            sockets = listening(psutil.Process(process.pid))
            assert port in {number for _, _, number in sockets}
            assert open_to_others(sockets) == set()
            with socket.socket() as outside:
                own = socket.gethostbyname(socket.gethostname())
                if not own.startswith("127."):
                    assert outside.connect_ex((own, port)) != 0
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_port_in_use_is_refused_with_another(tmp_path: Path) -> None:
    write_sweep(tmp_path, "demo", SCORES)
    prepare_store(f"sqlite:///{tmp_path / 'mlflow.db'}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run_cli("sweep", "ui", "demo", "--runs-dir", tmp_path, "--port", port, timeout=60)
    assert done.returncode == 2
    assert f"port {port} is in use" in done.stderr
    assert f"--port {port + 1}" in done.stderr
