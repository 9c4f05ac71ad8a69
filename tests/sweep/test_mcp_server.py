"""``sweep mcp`` as an agent's client sees it: the official client starts it and talks to it."""

import json
import os
import sys

import anyio
import pytest
from mcp import Client, StdioServerParameters, types

from loptune.errors import ConfigError, MissingError
from sweep import mcp_server
from tests.paths import ROOT
from tests.refusals import refused

RUNS = "\n".join(
    ["lr,seed,accuracy"]
    + [f"0.1,{seed},{0.5 + seed / 100}" for seed in range(8)]
    + [f"0.2,{seed},{0.7 + seed / 100}" for seed in range(8)]
)


def converse(place, *options, calls):
    """Start ``sweep mcp OPTIONS`` and call tools; return their names and the answers."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "sweep", "mcp", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=place,
    )

    async def talk():
        async with Client(server) as client:
            tools = (await client.list_tools()).tools
            answers = [await client.call_tool(name, words) for name, words in calls]
            return tools, answers, client.instructions

    return anyio.run(talk)


def content(result):
    """Return what a tool answered, as its structured content and its text say alike."""
    (text,) = result.content
    assert isinstance(text, types.TextContent)
    said = json.loads(text.text)
    assert result.structured_content == said
    return said


@pytest.mark.slow
def test_an_agent_keeps_a_change_by_conversation(tmp_path):
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
        ("gate_record", {"campaign": "camp", "arm": "proposal", "seed": 9, "score": -1.5}),
        ("gate_status", {"campaign": "camp"}),
    ]
    tools, answers, _ = converse(tmp_path, "--allow-run", calls=calls)
    assert {"gate_propose", "gate_record", "gate_recheck"} <= {tool.name for tool in tools}
    first = content(answers[0])
    assert (first["outcome"], first["exit_status"]) == ("more", 11)
    assert content(answers[8])["outcome"] == "ready"
    kept = content(answers[-3])
    assert (kept["outcome"], kept["kept"]) == ("keep", [1])
    assert answers[-2].is_error  # no proposal is open
    assert "[no-open-proposal]" in answers[-2].content[0].text
    assert content(answers[-1])["outcome"] == "more"


@pytest.mark.slow
def test_a_server_reads_only_unless_it_may_run(tmp_path):
    (tmp_path / "runs.csv").write_text(RUNS)
    question = {
        "table": "runs.csv",
        "by": ["lr"],
        "score": "accuracy",
        "seed": "seed",
        "baseline": ["lr=0.1"],
    }
    calls = [
        ("judge", question),
        ("gate_start", {"campaign": "camp", "worthwhile": 0.1}),
        ("gate_status", {"campaign": "--json"}),
        ("report", {"name": "none"}),
    ]
    tools, answers, instructions = converse(tmp_path, calls=calls)
    assert {tool.name for tool in tools} == {"judge", "gate_status", "status", "report"}
    assert all(tool.annotations.read_only_hint for tool in tools)
    assert "--allow-run" in instructions
    said = content(answers[0])
    assert said["verdict"]["difference"] == pytest.approx(0.2)
    assert [answer.is_error for answer in answers[1:]] == [True] * 3
    assert "[tool-operand]" in answers[2].content[0].text
    assert [path.name for path in tmp_path.iterdir()] == ["runs.csv"]


def test_without_the_package_the_error_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with refused("missing-extra", MissingError) as caught:
        mcp_server.make_server(tmp_path, allow_run=False)
    assert "loptune[mcp]" in caught.value.hint


def test_a_failing_command_is_an_error_with_its_words(tmp_path):
    with refused("tool-failed", ConfigError) as caught:
        mcp_server.Sweep(tmp_path).answer("gate", "status", "--json", "camp")
    assert "[no-campaign]" in caught.value.hint
