"""What a command prints cannot harm a terminal, whatever its encoding."""

import io
import os
import subprocess
import sys

import pytest
from rich.console import Console

from loptune.terminal.escaped_output import EscapedStream, escaped_output

HARMFUL = "a\x1b[2Jb\rc\x07\x9b1A\u202e.csv"


def test_control_characters_are_escaped_and_colors_are_not(capsys):
    with escaped_output():
        print(HARMFUL, "\x1b[31mred\x1b[0m\tß\n", flush=True)
    out = capsys.readouterr().out
    assert out == "a\\x1b[2Jb\\rc\\x07\\x9b1A\\u202e.csv \x1b[31mred\x1b[0m\tß\n\n"
    assert not isinstance(sys.stdout, EscapedStream)


def test_rich_writes_past_it(capsys):
    with escaped_output():
        Console(force_terminal=True, color_system="standard").print("[red]a[/]")
    assert "\x1b[31ma" in capsys.readouterr().out


def test_writing_returns_the_number_of_characters():
    assert EscapedStream(io.StringIO()).write("a\r") == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_an_ascii_terminal_gets_every_line(tmp_path, settings):
    rows = [
        f"{name},{seed},{score}"
        for name in ("grpo", "巴黎\x1b[2J")
        for seed, score in ((0, 1), (1, 2))
    ]
    (tmp_path / "läufe.csv").write_text("regel,seed,acc\n" + "\n".join(rows), "utf-8")
    line = [sys.executable, "-m", "sweep", "judge", str(tmp_path), "--by", "regel"]
    line += ["--score", "acc", "--baseline", "regel=grpo", "--output", str(tmp_path / "j")]
    ended = subprocess.run(
        line, cwd=tmp_path, env=os.environ | settings, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert b"report: " in ended.stdout and b"\x1b" not in ended.stdout
