"""Commands that messages print: each is typed here in the state in which it is printed.

`SITES` lists every place of the code that prints one, with how it is checked. Whoever adds a place
adds a line. Commands that would train start no training here: they run up to the driver.
"""

import ast
import re
import shlex
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from sweep.driver import run as driver
from sweep.record.sweep_record import SweepRecord
from tests.paths import ROOT
from tests.sweep.ended_sweeps import write_sweep
from tests.tables import table
from tests.test_messages import PACKAGES, texts
from tests.trainer.commands.test_runs import write_run
from trainer.run_folder import RunFolder
from trainer.shell.run_folder import command_line, lock_folder

VERBS = (
    "run|resume|status|stop|confirm|export|report|upload|ui|plan|ls|init|presets|options|metrics|"
    "evaluate|rehearse|doctor|serve|schema|judge|gate|noise|mcp|extend|study|clean"
)
COMMAND = re.compile(rf"(?:^|(?<=[`\s:(]))((?:sweep|trainer) (?:{VERBS})\b)")
# printed where the folder of runs is not the default one, so that it stands in each command
PLACED = re.compile(rf"(?:sweep|trainer) (?:{VERBS}) [^`,\n]*?--runs-dir [\w./-]+")
NAMED = re.compile(rf"(?:sweep|trainer) (?:{VERBS}) (?:demo|r)\b")
BUILDERS = ("command", "resume_command", "command_line")
SITES: dict[str, str] = table("printed_commands")
# how a place is checked
KINDS = {
    "here": "typed by a test of this file in the state in which it is printed",
    "help": "an example or a word to look up, with names that a user fills in; its page's test "
    "types it, or test_messages parses it",
    "parsed": "only parsed, by test_messages, not typed in the state in which it is printed",
}


def sites() -> Iterator[str]:
    """Yield ``FILE: PROGRAM VERB`` or ``FILE: BUILDER(VERB)`` for each printed command."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for text in texts(tree):
                for match in COMMAND.finditer(text):
                    yield f"{file}: {match[1].strip()}"
            for node in ast.walk(tree):
                if not isinstance(node, ast.Call):
                    continue
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in BUILDERS:
                    words = [word.value for word in node.args if isinstance(word, ast.Constant)]
                    verbs = " ".join(word for word in words if isinstance(word, str))
                    if name == "command" and not verbs:
                        continue  # another function of that name
                    yield f"{file}: {name}({verbs})"


def test_every_place_that_prints_a_command_is_listed():
    found = set(sites())
    assert found - set(SITES) == set(), "add these places to tests/data/printed_commands.yaml"
    assert set(SITES) - found == set(), "these places are gone"
    for site, how in SITES.items():
        kind, _, test = how.partition(" ")
        assert kind in KINDS or kind == "test", site
        if kind == "test":  # in another file: path::name
            path, _, name = test.partition("::")
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), site


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder of runs other than the default of the folder where commands are typed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["sweep"])
    return tmp_path / "other"


@pytest.fixture
def started(monkeypatch) -> list[SweepRecord]:
    """Sweeps that a command would run: it ends where the driver would start."""
    sweeps: list[SweepRecord] = []
    for name in ("start_sweep", "resume_sweep"):
        monkeypatch.setattr(driver, name, lambda sweep, options: sweeps.append(sweep) or 0)
    return sweeps


@pytest.fixture
def typing(capsys):
    """Types a printed command and returns what it prints; it must end with exit code 0.

    A confirmation in rounds of which no round runs ends as one that was interrupted.
    """

    def carry_out(line: str, code: int = 0) -> str:
        program, *words = shlex.split(line)
        ends = 130 if "--rounds" in words else code
        assert import_module(f"{program}.cli").main(words) == ends, capsys.readouterr()
        printed = capsys.readouterr()
        return printed.out + printed.err

    return carry_out


def printed_commands(text: str) -> list[str]:
    """The commands in a text; each names the folder of runs."""
    found = PLACED.findall(text)
    assert len(NAMED.findall(text)) == len(found), text
    return found


ENDED = {0: {0: 0.5, 1: 0.52, 2: 0.51}, 1: {0: 0.6, 1: 0.63, 2: 0.61}}


def test_commands_of_a_status_and_report(elsewhere, typing, started):
    write_sweep(elsewhere, "demo", {0: {0: 0.5, 1: 0.6}, 1: {0: 0.9}})
    place = f"--runs-dir {elsewhere}"
    shown = typing(f"sweep status demo {place}") + typing(f"sweep report demo {place}")
    lines = printed_commands(shown)
    verbs = {line.split()[1] for line in lines}
    assert {"resume", "report"} <= verbs, shown
    for line in lines:
        typing(line)
    assert {sweep.folder.runs_dir for sweep in started} == {elsewhere.resolve()}


def test_commands_of_an_undecided_search_and_its_export(elsewhere, typing, started):
    write_sweep(elsewhere, "demo", ENDED)
    shown = typing(f"sweep report demo --runs-dir {elsewhere}")
    page = (elsewhere / "demo" / "report" / "report.html").read_text(encoding="utf-8")
    page = re.sub(r'<span style="white-space: nowrap">(.*?)</span>', r"\1", page)
    shown += "\n".join(re.findall(r"<code>(sweep \w+ demo.*?)</code>", page))
    lines = printed_commands(shown)
    assert any(line.startswith("sweep confirm demo") for line in lines), shown
    for line in lines:
        typing(line)
        shutil.rmtree(elsewhere / "demo-confirm", ignore_errors=True)  # they are alternatives
    assert started


def test_commands_of_a_confirmation_that_exists(elsewhere, typing, started):
    write_sweep(elsewhere, "demo", ENDED)
    place = f"--runs-dir {elsewhere}"
    typing(f"sweep confirm demo {place}")
    (fresh,) = started
    write_sweep(
        elsewhere,
        fresh.folder.name,
        {0: {7: 0.5}},
        confirms={"sweep": "demo", "configurations": [0, 1]},
        search={"configurations": 0},
    )
    refused = typing(f"sweep confirm demo {place}", code=2)
    assert "[sweep-exists]" in refused
    (line, *_) = printed_commands(refused)
    typing(line)


def test_commands_of_an_incomplete_configuration(elsewhere, typing):
    write_sweep(elsewhere, "demo", {0: {}, 1: {}})
    place = f"--runs-dir {elsewhere}"
    for words in ("export demo", "export demo --configuration 1"):
        refused = typing(f"sweep {words} {place}", code=3)
        (line,) = printed_commands(refused)
        typing(line)


def test_commands_of_a_sweep_in_use(elsewhere, typing, started):
    sweep = write_sweep(elsewhere, "demo", ENDED)
    from trainer.errors import NameInUseError
    from trainer.shell.run_folder import raise_if_locked

    with lock_folder(sweep.folder.root, "sweep"), pytest.raises(NameInUseError) as held:
        raise_if_locked(sweep.folder.root, "sweep")
    lines = printed_commands(str(held.value))
    assert [line.split()[1] for line in lines] == ["status", "stop"]
    for line in lines:
        typing(line)


def test_commands_of_a_run_that_stopped_and_one_in_a_sweep(elsewhere, typing, monkeypatch):
    write_run(elsewhere, "r")
    resumed: list[Path] = []

    def start_run(start):
        resumed.append(Path(start.spec).resolve())
        return 0

    monkeypatch.setattr("trainer.commands.start.start_run", start_run)
    place = f"--runs-dir {elsewhere}"
    refused = typing(f"trainer stop r {place}", code=3)
    shown = typing(f"trainer status r {place}")
    lines = printed_commands(refused + shown)
    assert [line.split()[1] for line in lines] == ["resume", "resume"]
    for line in lines:
        typing(line)
    assert resumed == [RunFolder(elsewhere / "r").config.resolve()] * 2


def test_commands_of_a_sweep_taken_for_a_run(elsewhere, typing):
    write_sweep(elsewhere, "demo", ENDED)
    refused = typing(f"trainer status demo --runs-dir {elsewhere}", code=3)
    (line,) = printed_commands(refused)
    typing(line)


def test_commands_of_a_trial_that_is_stopped(elsewhere, typing):
    sweep = write_sweep(elsewhere, "demo", ENDED)
    trial = write_run(sweep.folder.root / "trials", "c000-s0")
    with lock_folder(trial):
        refused = typing(f"trainer stop {shlex.quote(str(trial))}", code=2)
    (line,) = printed_commands(refused)
    typing(line)


def test_commands_of_a_plan(elsewhere, typing, started, tmp_path):
    from tests.sweep.spaces import kk_space

    space = kk_space(tmp_path)
    shown = typing(f"sweep plan {space} --runs-dir {elsewhere}")
    lines = re.findall(r"^  (sweep run .*)$", shown, re.M)
    assert lines
    for line in lines:
        typing(line)
    assert {sweep.folder.runs_dir for sweep in started} == {elsewhere.resolve()}


def test_a_command_names_a_folder_only_if_it_must(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command_line("sweep", "status", "a", runs_dir=Path("runs")) == "sweep status a"
    assert command_line("sweep", "status", "a", runs_dir=tmp_path / "runs") == "sweep status a"
    there = command_line("trainer", "resume", "a", runs_dir=tmp_path / "my runs")
    assert there == "trainer resume a --runs-dir 'my runs'"
