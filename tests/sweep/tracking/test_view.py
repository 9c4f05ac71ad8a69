"""`sweep ui` serves the sweep's own store to this machine alone."""

import http.client
import json
import os
import signal
import socket

import psutil
import pytest

from dashboards.trial import TrialRecord
from sweep.record.folder import existing_sweep, read_spec
from sweep.tracking.outcomes import EndedTrial
from sweep.tracking.parent_run import open_parent_run
from sweep.tracking.view import TAG, save_view, view_id, view_state
from tests.ports import quiet_port
from tests.run_cli import start_cli
from tests.sockets import listening, open_to_others
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.harness import wait_until
from tests.trainer.tracking.store import sqlite_store
from trainer.tracking.mlflow_store import connect, prepare_store


def ask(port, path, headers, method="GET", body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def text_of(page, browser, until):
    """What a browser shows in its window, without a click."""
    tab = browser.new_page(viewport={"width": 1440, "height": 900})
    tab.set_default_timeout(300_000)  # [ms]
    tab.goto(page)
    tab.get_by_text(until).first.wait_for()
    return str(tab.locator("body").inner_text())


def answers(port):
    try:
        return ask(port, "/health", {})[0] == 200
    except OSError:
        return False


ALPHA = "algorithm.ar_alpha"
LR = "optim.lr"


def test_the_view_has_columns_and_charts_of_all_that_is_searched(tmp_path):
    parameters = {
        ALPHA: {"uniform": [0.0, 0.5]},
        LR: {"loguniform": [1e-6, 1e-5]},
        "optim.weight_decay": {"value": 0},
    }
    write_sweep(tmp_path, parameters=parameters, objective={"metric": "eval/reward", "mode": "min"})
    state = view_state(read_spec(existing_sweep(tmp_path, "demo")))
    assert state["selectedColumns"][:3] == [
        "metrics.`final/score`",
        f"params.`{ALPHA}`",
        f"params.`{LR}`",
    ]
    assert {"params.`algorithm.lopti_eta`", "tags.`loptune.seed`"} < set(state["selectedColumns"])
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`final/score`", True)
    curves, parallel, *scatters = state["compareRunCharts"]
    assert curves["selectedMetricKeys"] == ["eval/reward"]
    assert parallel["selectedParams"] == [ALPHA, LR]
    assert [chart["xaxis"]["key"] for chart in scatters] == [ALPHA, LR]


def test_a_view_is_written_once_and_a_changed_one_is_left_alone(tmp_path):
    write_sweep(tmp_path)
    spec = read_spec(existing_sweep(tmp_path, "demo"))
    uri = sqlite_store(tmp_path)
    assert save_view(uri, spec) == ""  # nothing has been recorded
    open_parent_run(uri, "demo", "demo", {}, "1")
    page = save_view(uri, spec)
    assert page.startswith("/#/experiments/1/runs?") and page.endswith(
        f"viewStateShareKey={view_id('demo')}"
    )
    client = connect(uri)
    tag = TAG + view_id("demo")
    envelope = json.loads(client.get_experiment("1").tags[tag])
    assert envelope["name"] == "sweep demo" and json.loads(envelope["state"]) == (view_state(spec))
    client.set_experiment_tag("1", tag, "changed")
    save_view(uri, spec)
    assert client.get_experiment("1").tags[tag] == "changed"


@pytest.mark.slow
def test_the_ui_shows_the_sweep_and_refuses_strangers(tmp_path, browser):
    write_sweep(tmp_path)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    prepare_store(uri)
    parent = open_parent_run(uri, "demo", "demo", {}, "1")
    tags = {"loptune.sweep": "demo", "loptune.run": "demo/a"}
    params = {ALPHA: 0.125, "algorithm.advantage": "grpo"}
    parent.reconcile(
        [
            EndedTrial(
                TrialRecord("a", "1", "0", score=0.625, parameters=params),
                "#1 grpo+AR · seed 0",
                tags,
            )
        ]
    )
    port = quiet_port()
    (tmp_path / "here").mkdir()
    with start_cli(
        "sweep", "ui", "demo", "--runs-dir", tmp_path, "--port", port, cwd=tmp_path / "here"
    ) as process:
        try:
            page = process.stdout.readline().split()[1]
            assert page.startswith(f"http://127.0.0.1:{port}/#/experiments/1/runs?")
            wait_until(lambda: answers(port))
            shown = text_of(page, browser, until="0.625")
            assert {"final/score", "0.625", "0.125", "#1 grpo+AR · seed 0"} <= set(
                shown.splitlines()
            )
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
                address = socket.gethostbyname(socket.gethostname())
                if not address.startswith("127."):
                    assert outside.connect_ex((address, port)) != 0
        finally:
            os.killpg(process.pid, signal.SIGKILL)
