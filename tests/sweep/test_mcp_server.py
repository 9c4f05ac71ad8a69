"""``sweep mcp`` as an agent's client sees it: the official client talks to the server, in this
process and in one of its own.
"""

import json
import os
import sys
import time
from dataclasses import replace

import anyio
import pytest
from mcp import Client, StdioServerParameters, types
from pydantic import TypeAdapter

import loptune as lt
from loptune.errors import MissingError
from loptune.terminal.table import json_text
from sweep import mcp_server
from sweep.cli import main
from tests.paths import ROOT
from tests.refusals import refused

RUNS = "\n".join(
    ["lr,seed,accuracy"]
    + [f"0.1,{seed},{0.5 + seed / 100}" for seed in range(8)]
    + [f"0.2,{seed},{0.7 + seed / 100}" for seed in range(8)]
)
QUESTION = {
    "table": "runs.csv",
    "by": ["lr"],
    "score": "accuracy",
    "seed": "seed",
    "baseline": ["lr=0.1"],
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with runs, in which the server starts."""
    folder = tmp_path / "inside"
    folder.mkdir()
    (folder / "runs.csv").write_text(RUNS)
    monkeypatch.chdir(folder)
    return folder


def converse(server, calls):
    """Call tools of a server; return the tools, the answers and the instructions."""

    async def talk():
        async with Client(server) as client:
            tools = (await client.list_tools()).tools
            answers = [await client.call_tool(name, words) for name, words in calls]
            return tools, answers, client.instructions

    return anyio.run(talk)


def answers_of(*calls, **options):
    """The answers of a server in this process."""
    server = mcp_server.make_server(**{"allow_run": True, **options})
    return converse(server, calls)[1]


def content(result):
    """Return what a tool answered, as its structured content and its text say alike."""
    (text,) = result.content
    assert isinstance(text, types.TextContent)
    assert not result.is_error, text.text
    said = json.loads(text.text)
    assert result.structured_content == said
    return said


def code_of(result):
    """The code of an error."""
    assert result.is_error
    return result.content[0].text.partition("[")[2].partition("]")[0]


def test_an_agent_keeps_a_change_by_conversation(place):
    scores = [("baseline", seed, 0.5 + 0.01 * (seed % 3)) for seed in range(8)]
    calls = [
        ("gate_start", {"campaign": "camp", "worthwhile": 0.1}),
        *(
            ("gate_record", {"campaign": "camp", "arm": arm, "seed": seed, "score": score})
            for arm, seed, score in scores
        ),
        ("gate_propose", {"campaign": "camp", "note": "wider"}),
        *(
            (
                "gate_record",
                {"campaign": "camp", "arm": "proposal", "seed": seed, "score": 1 + 0.01 * seed},
            )
            for seed in range(8)
        ),
        *(  # the baseline runs again before the change is kept
            ("gate_record", {"campaign": "camp", "arm": arm, "seed": 1000 + seed, "score": score})
            for arm, seed, score in scores
        ),
        ("gate_record", {"campaign": "camp", "arm": "proposal", "seed": 9, "score": -1.5}),
        ("gate_status", {"campaign": "camp"}),
    ]
    answers = answers_of(*calls)
    first = content(answers[0])
    assert (first["outcome"], first["exit_status"]) == ("more", 11)
    assert content(answers[8])["outcome"] == "ready"
    kept = content(answers[-3])
    assert (kept["outcome"], kept["kept"]) == ("keep", [1])
    assert code_of(answers[-2]) == "no-open-proposal"
    assert content(answers[-1])["outcome"] == "more"


def test_an_argument_that_a_tool_does_not_have_is_refused(place):
    answers = answers_of(
        ("gate_start", {"campaign": "camp", "worthwile": 0.1}),
        ("judge", {**QUESTION, "seeds": "seed"}),
    )
    assert [code_of(answer) for answer in answers] == ["no-argument", "no-argument"]
    assert "worthwhile" in answers[0].content[0].text
    assert not (place / "camp").exists()


def test_settings_of_a_proposal_arrive_by_a_tool(place):
    (place / "toy.py").write_text("")
    (place / "toy.yaml").write_text(
        "name: toy\n"
        "program: {command: [python, toy.py, '{lr}', '{seed}'], defaults: {lr: 0.1}}\n"
        "objective: {metric: score, window: 1, worthwhile: 0.05}\n"
        "baselines: [{}]\n"
        "search: {configurations: 0}\n"
    )
    answers = answers_of(
        ("gate_start", {"campaign": "camp", "space": "./toy.yaml", "settings": ["lr=0.2"]}),
        ("gate_propose", {"campaign": "camp", "settings": ["lr=0.3"]}),
    )
    assert content(answers[0])["baseline"]["settings"] == {"lr": 0.2}
    assert content(answers[1])["history"][0]["settings"] == {"lr": 0.3}


def test_a_server_reads_only_unless_it_may_run(place):
    server = mcp_server.make_server(allow_run=False)
    calls = [
        ("judge", QUESTION),
        ("gate_start", {"campaign": "camp", "worthwhile": 0.1}),
        ("report", {"name": "none"}),
    ]
    tools, answers, instructions = converse(server, calls)
    assert {tool.name for tool in tools} == {
        "judge",
        "gate_status",
        "gate_log",
        "gate_import",
        "status",
        "report",
    }
    assert all(tool.annotations.read_only_hint for tool in tools)
    assert not any(tool.annotations.destructive_hint for tool in tools)
    assert "--allow-run" in instructions
    assert content(answers[0])["verdict"]["difference"] == pytest.approx(0.2)
    assert [answer.is_error for answer in answers[1:]] == [True, True]
    assert [path.name for path in place.iterdir()] == ["runs.csv"]


def test_tools_that_change_something_say_so(place):
    tools, _, _ = converse(mcp_server.make_server(allow_run=True), [])
    hints = {tool.name: tool.annotations for tool in tools}
    assert set(hints) == {tool.name for tool in mcp_server.TOOLS}
    for tool in mcp_server.TOOLS:
        assert hints[tool.name].read_only_hint == tool.reads_only
        assert hints[tool.name].destructive_hint != tool.reads_only


def test_the_command_the_function_and_the_tool_give_the_same_data(place, capsys):
    told = content(answers_of(("judge", QUESTION))[0])
    line = "judge runs.csv --by lr --score accuracy --seed seed --baseline lr=0.1 --json"
    assert main(line.split()) == 0
    printed = json.loads(capsys.readouterr().out)
    baseline = {"lr": 0.1}
    judgement = lt.judge("runs.csv", by=["lr"], score="accuracy", seed="seed", baseline=baseline)
    page = {"report": "judged/report.html"}
    assert told == {"exit_status": 0, **printed, "report": None}
    assert printed == {**json.loads(json_text(judgement.fields())), **page}


@pytest.mark.parametrize("tool", mcp_server.TOOLS, ids=lambda tool: tool.name)
def test_a_schema_is_the_signature(tool, place):
    tools, _, _ = converse(mcp_server.make_server(allow_run=True), [])
    (schema,) = [each.input_schema for each in tools if each.name == tool.name]
    passed = {each.name: each for each in tool.arguments}
    assert set(schema["properties"]) == set(passed)
    required = [each.name for each in passed.values() if each.is_required]
    assert schema.get("required", []) == required
    for name, shown in schema["properties"].items():
        assert shown["description"] == passed[name].option.help
        kind = TypeAdapter(passed[name].annotation).json_schema()
        assert {**kind, **shown} == shown | {"title": shown["title"]}
        if not passed[name].is_required:
            assert shown["default"] == json.loads(
                TypeAdapter(object).dump_json(passed[name].default)
            )


@pytest.mark.parametrize(
    "table", ["../runs.csv", "/etc/passwd", "link.csv", "here/*/../../../runs.csv"]
)
def test_a_path_outside_of_the_folder_is_refused(table, place):
    (place.parent / "runs.csv").write_text(RUNS)
    (place / "link.csv").symlink_to(place.parent / "runs.csv")
    question = {**QUESTION, "table": table}
    assert code_of(answers_of(("judge", question))[0]) == "outside-folder"


def test_a_server_may_be_let_outside(place):
    (place / "runs.csv").rename(place.parent / "runs.csv")
    question = {**QUESTION, "table": "../runs.csv"}
    (answer,) = answers_of(("judge", question), allow_outside=True)
    assert content(answer)["verdict"]["difference"] == pytest.approx(0.2)


def test_a_tool_that_takes_too_long_is_an_error(place, monkeypatch):
    def slow(**_):
        time.sleep(0.5)

    tools = [
        replace(tool, command=replace(tool.command, fields=lambda _: slow()))
        for tool in mcp_server.TOOLS
    ]
    monkeypatch.setattr(mcp_server, "TOOLS", tools)
    (answer,) = answers_of(("judge", QUESTION), time_limit_s=0.05)
    assert code_of(answer) == "tool-time-out"


@pytest.mark.slow
def test_prints_of_a_command_do_not_reach_the_protocol(place):
    (place / "sweep.py").write_text("raise SystemExit('a file of the user')")
    server = StdioServerParameters(
        command=sys.executable,
        args=["-P", "-m", "sweep", "mcp"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=place,
    )
    _, answers, _ = converse(server, [("judge", QUESTION)])
    assert content(answers[0])["verdict"]["difference"] == pytest.approx(0.2)


SERVER = """
import random
import sys
import time
from pathlib import Path

from sweep.cli import main
from sweep.gate import runs
from sweep.gate.batch import BatchResults


class Pool:
    def __init__(self, folder, **options):
        self.waiting = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def submit(self, batch, place):
        self.waiting.append(batch)

    def wait(self, timeout):
        names = [batch.name for batch in self.waiting]
        while Path("slow").exists() and any(name.startswith("proposal") for name in names):
            time.sleep(0.01)  # until the client gives up
        ended = {}
        for batch in self.waiting:
            lr = batch.settings.get("lr", 0.1)
            noise = {seed: random.Random(f"{seed} {lr}").gauss(0, 0.02) for seed in batch.seeds}
            scores = {seed: lr + noise[seed] for seed in batch.seeds}
            ended[batch.name] = BatchResults(scores, {})
        self.waiting = []
        return ended


runs.RunPool = Pool
sys.exit(main(["mcp", "--allow-run"]))
"""
TOY = """
name: toy
program: {command: [python, toy.py, "{lr}", "{seed}"], defaults: {lr: 0.1}}
objective: {metric: score, window: 1, worthwhile: 0.05}
baselines: [{}]
search: {configurations: 0}
"""


def test_a_session_goes_on_where_the_client_of_another_gave_up(place):
    """Over standard input and output, as an agent talks to it. Only trainings are replaced."""
    (place / "toy.py").write_text("")
    (place / "toy.yaml").write_text(TOY)
    (place / "slow").write_text("")
    server = StdioServerParameters(
        command=sys.executable,
        args=["-P", "-c", SERVER],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=place,
    )
    _, [started, measured], _ = converse(
        server,
        [
            ("gate_start", {"campaign": "camp", "space": "./toy.yaml"}),
            ("gate_run", {"campaign": "camp"}),
        ],
    )
    assert [content(each)["outcome"] for each in (started, measured)] == ["more", "ready"]

    async def give_up():
        async with Client(server) as client:
            words = {"campaign": "camp", "settings": ["lr=0.3"], "run": True}
            async with anyio.create_task_group() as group:
                group.start_soon(client.call_tool, "gate_propose", words)
                while '"proposal"' not in (place / "camp" / "events.jsonl").read_text():
                    await anyio.sleep(0.05)
                group.cancel_scope.cancel()

    anyio.run(give_up)
    (place / "slow").unlink()
    campaign = {"campaign": "camp"}
    _, answers, _ = converse(
        server,
        [
            ("gate_status", campaign),
            ("gate_run", campaign),
            ("gate_propose", {**campaign, "settings": ["lr=0.4"]}),
            ("gate_withdraw", campaign),
            ("gate_withdraw", campaign),
            ("gate_run", campaign),
            ("gate_propose", {**campaign, "settings": ["lr=0.2"]}),
        ],
    )
    still_open, run, proposed, withdrawn, again, measured, second = answers
    assert (content(still_open)["outcome"], content(still_open)["open"]) == ("more", [1])
    assert (content(run)["outcome"], content(run)["kept"]) == ("keep", [1])
    assert content(proposed)["open"] == [2]
    assert content(withdrawn)["history"][1]["reason"] == "withdrawn"
    assert code_of(again) == "no-open-proposal"
    assert content(measured)["outcome"] == "ready"
    [need] = content(second)["needs"]
    words = {**campaign, "arm": "proposal", "seed": need["seeds"][0], "score": 0.2}
    _, [recorded, told], _ = converse(
        server, [("gate_record", words), ("gate_log", {**campaign, "search": "lr=0.2"})]
    )
    assert content(recorded)["outcome"] == "discard"
    assert content(recorded)["by_hand"] == [{"what": "proposal 3", "seeds": need["seeds"]}]
    [entry] = content(told)["proposals"]
    assert (entry["proposal"], entry["outcome"]) == (3, "discard")


def test_without_the_package_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with refused("missing-extra", MissingError) as caught:
        mcp_server.make_server(allow_run=False)
    assert "loptune[mcp]" in caught.value.hint


def test_a_tool_judges_several_scores_with_guards(place):
    rows = ["lr,seed,math,amc,length"]
    for lr, gain, loss in ((0.1, 0.0, 0.0), (0.2, 0.1, 30.0)):
        for seed in range(6):
            score = 0.5 + seed / 100 + gain * (1 + seed / 100)
            rows.append(f"{lr},{seed},{score},{score - 0.1},{100 + seed + loss - lr * seed}")
    (place / "runs.csv").write_text("\n".join(rows))
    question = {**QUESTION, "score": "math,amc", "guard": ["length:20"], "fresh": True}
    answer = content(answers_of(("judge", question))[0])
    assert answer["sentences"][0].startswith("Better, but worse on length by 29.8")
    assert answer["verdict"]["difference"] == pytest.approx(0.1025)
    assert set(answer["scores"]) == {"math", "amc"}
    assert [guard["outcome"] for guard in answer["guards"]] == ["fails"]
