"""A project of W&B's server, read by the official client from a server of this test."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import wandb

from dashboards.sources.wandb_project import read_project
from sweep.cli import main
from tests.refusals import refused

SCORES = {"grpo": [0.50, 0.52, 0.51, 0.53], "dapo": [0.60, 0.62, 0.61, 0.63]}


def node(name, config, state="finished", summary=None):
    """A run as W&B's server describes it."""
    return {
        "id": name, "name": name, "displayName": f"run {name}", "state": state, "tags": [],
        "config": json.dumps({key: {"value": value} for key, value in config.items()}),
        "summaryMetrics": json.dumps(summary or {}), "systemMetrics": "{}", "historyLineCount": 0,
        "historyKeys": None, "user": {"name": "me", "username": "me"}, "sweepName": None,
        "createdAt": "2026-01-01T00:00:00", "heartbeatAt": "2026-01-01T00:00:00", "group": None,
        "jobType": None, "commit": None, "readOnly": False, "notes": None, "description": None,
        "projectId": "1",
    }  # fmt: skip


class Server:
    """A part of W&B's GraphQL server: who asks, the runs of the project me/p, their histories."""

    def __init__(self):
        self.runs = []
        self.histories = {}

    def answer(self, query, variables):
        if "viewer {" in query:
            viewer = {"id": "1", "entity": "me", "username": "me", "email": "", "flags": "{}"}
            return {"viewer": {**viewer, "teams": {"edges": []}}}
        if variables["project"] != "p":
            return {"project": None}
        if "sampledHistory" in query:
            asked = json.loads(variables["specs"][0])
            points = self.histories.get(variables["name"], [])
            having = [point for point in points if set(asked["keys"]) <= set(point)]
            return {"project": {"run": {"sampledHistory": [having[: asked["samples"]]]}}}
        first = int(variables["cursor"] or 0)  # two runs a page
        page = self.runs[first : first + 2]
        edges = [{"node": run, "cursor": str(first + n + 1)} for n, run in enumerate(page)]
        more = first + 2 < len(self.runs)
        return {"project": {
            "internalId": "1", "runCount": len(self.runs), "readOnly": False,
            "runs": {"edges": edges, "pageInfo": {"endCursor": None, "hasNextPage": more}},
        }}  # fmt: skip


@pytest.fixture
def server(monkeypatch, tmp_path):
    served = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            asked = json.loads(body) if self.path == "/graphql" else {}
            data = served.answer(asked["query"], asked.get("variables", {})) if asked else {}
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps({"data": data}).encode())

        def log_message(self, *arguments):
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{listening.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    yield served
    listening.shutdown()


def two_losses(server):
    for loss, scores in SCORES.items():
        for seed, score in enumerate(scores):
            name = f"{loss}{seed}"
            server.runs.append(node(name, {"loss": loss, "seed": seed, "optim": {"lr": 1e-6}}))
            server.histories[name] = [
                {"_step": 10, "acc": score - 0.2}, {"_step": 20, "acc": score}
            ]  # fmt: skip


def test_a_project_is_read_with_settings_and_evaluations(server):
    two_losses(server)
    server.runs.append(node("only", {"loss": "grpo", "seed": 9}, summary={"acc": 0.4}))
    server.runs.append(node("lost", {"loss": "dapo", "seed": 9}, state="crashed"))
    table = read_project("me/p", "acc")
    assert len(table) == 2 * 8 + 2
    row = table[table.ID == "dapo1"].iloc[-1]
    assert (row["config.loss"], row["config.seed"], row["config.optim.lr"]) == ("dapo", 1, 1e-6)
    assert (row.step, row.acc, row.State, row.Name) == (20, 0.62, "finished", "run dapo1")
    assert table[table.ID == "only"].acc.tolist() == [0.4]
    assert table[table.ID == "lost"].acc.isna().all()


def test_judge_takes_the_name_of_a_project(server, capsys):
    two_losses(server)
    asked = "judge wandb:me/p --by loss --baseline loss=grpo --score acc --window 1 --json"
    assert main(asked.split()) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["arms"][1]["difference"] == pytest.approx(0.1)
    assert told["arms"][1]["layout"] == "paired"


def test_values_that_are_not_finite_fail_their_run(server):
    two_losses(server)
    server.histories["dapo0"][-1]["acc"] = "NaN"
    table = read_project("me/p", "acc")
    assert table[table.ID == "dapo0"].acc.isna().tolist() == [False, True]


def test_projects_that_cannot_be_read(server, monkeypatch):
    with refused("no-runs"):
        read_project("me/p", "acc")
    two_losses(server)
    with refused("unreadable-project"):
        read_project("me/other", "acc")
    with refused("unknown-column"):
        read_project("me/p", "accuracy")
    with refused("sampled-history"):
        read_project("me/p", "acc", max_points=2)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(wandb.Api, "_HTTP_TIMEOUT", 1)
    with refused("unreadable-project"):
        read_project("me/p", "acc")
