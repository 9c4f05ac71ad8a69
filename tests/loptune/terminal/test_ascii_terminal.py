"""Every command prints on a terminal that has no characters but ASCII."""

import argparse
import contextlib
import io

import pytest

import sweep.cli
import trainer.cli
from sweep.gate.campaign import CampaignSpec, start_campaign
from tests.sweep.ended_sweeps import write_sweep


def verbs():
    """Yield the words of every command of both programs."""

    def below(parser, words):
        yield words
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, command in action.choices.items():
                    yield from below(command, (*words, name))

    yield from below(sweep.cli.build_parser(), ("sweep",))
    yield ("trainer",)
    for name in trainer.cli.COMMANDS:
        yield from below(trainer.cli.build_parser([name]), ("trainer",))


ENCODINGS = pytest.mark.parametrize("encoding", ["ascii", "latin-1"])


def printed(words, encoding):
    """Run a command in this process, on a terminal of an encoding; return its exit code and what it
    printed.
    """
    output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    main = {"sweep": sweep.cli.main, "trainer": trainer.cli.main}[words[0]]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = main(list(words[1:]))
        except SystemExit as ended:  # of argparse
            code = ended.code
    output.flush()
    return code, output.buffer.getvalue().decode(encoding)


@ENCODINGS
@pytest.mark.parametrize("words", sorted(set(verbs())), ids=" ".join)
def test_every_command_prints_its_help(words, encoding):
    code, text = printed([*words, "--help"], encoding)
    assert code == 0 and text.startswith("usage: ")


TABLES = {
    "sweep plan": ["sweep", "plan", "quickstart"],
    "sweep ls": ["sweep", "ls"],
    "sweep status": ["sweep", "status", "demo"],
    "sweep judge": [
        "sweep",
        "judge",
        "läufe\x1b[2J.csv",
        "--by",
        "\u0440\u0435\u0433\u043b\u0430",
        "--score",
        "acc",
        "--baseline",
        "\u0440\u0435\u0433\u043b\u0430=巴黎",
    ],
    "sweep gate": ["sweep", "gate", "status", "kampagne-ä"],
    "trainer ls": ["trainer", "ls"],
    "trainer options": ["trainer", "options"],
    "trainer metrics": ["trainer", "metrics"],
    "trainer presets": ["trainer", "presets"],
    "trainer presets NAME": ["trainer", "presets", "tiny_kk"],
}


@ENCODINGS
@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_printed(name, encoding, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        "\u0440\u0435\u0433\u043b\u0430,seed,acc",
        "巴黎,0,1",
        "巴黎,1,2",
        "\x1b[2J,0,3",
        "\x1b[2J,1,5",
    ]
    (tmp_path / "läufe\x1b[2J.csv").write_text("\n".join(rows), "utf-8")
    write_sweep(tmp_path / "runs", "demo")
    start_campaign(tmp_path / "kampagne-ä", CampaignSpec(worthwhile=0.1, metric="güte"))
    code, text = printed(TABLES[name], encoding)
    assert code in (0, 1, 11), text  # 11: a campaign that needs runs
    assert "\x1b" not in text and text
