"""Commands that help texts and hints print for any run or sweep: each is typed with names filled
in.

`test_printed_commands.SITES` gives the filled line of each place, and the command that prints it.
The folder has a run ``ar``, an ended sweep ``quickstart``, runs in ``runs.csv``, a space and a run
file. Commands that train, serve, or write a model run up to that point.
"""

import argparse
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace

import pytest

import sweep.cli
import trainer.cli
from sweep.driver import run as driver
from tests.paths import ROOT
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.spaces import kk_space
from tests.test_printed_commands import ENDED, SITES
from tests.trainer.commands.test_runs import EVALUATIONS, write_run
from trainer.config.schema import load_config, save_config

LISTED = [(site, how) for site, how in SITES.items() if isinstance(how, dict)]
# exit codes of commands that did what they were asked: done, more runs are needed (a campaign),
# no round of a confirmation was run (none is here)
DONE = {0, 11, 130}


# they train, need a kept change, or a store
NEED_MORE = ("sweep gate run", "sweep gate recheck", "sweep evidence")


def examples(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the examples of a command's help screen and of those of its commands."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for word, command in action.choices.items():
            yield from examples(f"{name} {word}", command)
    if not below and name not in NEED_MORE:
        found = re.search(r"example:\n  (.*)", parser.epilog or "")
        assert found, name
        yield found[1]


EXAMPLES = [
    *examples("trainer", trainer.cli.build_parser()),
    *examples("sweep", sweep.cli.build_parser()),
]


MEASURED = [f"record camp baseline {seed} 0.{60 + seed}" for seed in range(8)]
# command of the gate -> what was typed before, so that it has something to do
BEFORE = {"propose": MEASURED, "withdraw": [*MEASURED, "propose camp --note longer"]}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a run, a sweep and files, and commands that start nothing long."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["sweep"])
    runs = tmp_path / "runs"
    done = [*EVALUATIONS, {"step": 8, "final/accuracy": 0.6}]
    newest = write_run(runs, "ar", done, {"run_id": None}, steps=(8,)) / "checkpoints" / "step-8"
    write_sweep(runs, "quickstart", ENDED)
    shutil.copy(ROOT / "examples" / "judge" / "runs.csv", tmp_path)
    kk_space(tmp_path).rename(tmp_path / "space.yaml")
    save_config(load_config("tiny_kk"), tmp_path / "run.yaml")
    lines = ["commit\tval_bpb\tmemory_gb\tstatus\tdescription"]
    lines += [f"c{number}\t{1 - number / 100}\t40.0\tkeep\tchange" for number in range(3)]
    (tmp_path / "results.tsv").write_text("\n".join(lines) + "\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "run.yaml").touch()
    typed = []

    def reached(*_, **__):
        typed.append("reached")
        return 0

    for name in ("start_sweep", "resume_sweep"):
        monkeypatch.setattr(driver, name, reached)
    monkeypatch.setattr("trainer.commands.start.start_run", reached)
    monkeypatch.setattr("trainer.commands.export._export_model", reached)
    monkeypatch.setattr("trainer.commands.runs.upload_run", reached)
    monkeypatch.setattr("sweep.tracking.upload.upload_sweep", reached)
    monkeypatch.setattr("trainer.commands.evaluate.intact_checkpoints", lambda _: iter([newest]))
    monkeypatch.setattr("trainer.commands.evaluate.damaged_files", lambda _: [])
    monkeypatch.setitem(sys.modules, *_module("evaluation_run", reached))
    monkeypatch.setattr("trainer.rehearsal.rehearse.rehearse", lambda *_, **__: iter([REHEARSED]))
    monkeypatch.setattr("trainer.rollouts.vllm.command.serve", lambda *_: sys.exit(0))
    monkeypatch.setattr("sweep.gate.aa_test.measure", _measured)
    monkeypatch.setattr("mcp.server.MCPServer.run", reached)
    return tmp_path


REHEARSED = SimpleNamespace(name="kk_3b", row=lambda: {"preset": "kk_3b"}, failed=lambda: False)


def _module(name, function):
    """The module that evaluates, which would load a model."""
    return f"trainer.commands.{name}", SimpleNamespace(run_evaluations=function)


def _measured(folder, seeds, repeats, *, program, resume):
    """A report of noise as `sweep noise` gets it from its runs."""
    from sweep.gate.aa_test import NoiseReport

    scores = {seed: 0.5 + seed / 100 for seed in range(seeds)}
    return NoiseReport(scores=scores, repeated={0: 0.5}, failed=[], minutes=1.0)


def typed(line, capsys):
    """Carry out a command; return its exit code and output."""
    program, *words = shlex.split(line)
    try:
        code = import_module(f"{program}.cli").main(words)
    except SystemExit as ended:  # --help
        code = ended.code
    printed = capsys.readouterr()
    return code, printed.out + printed.err


@pytest.mark.parametrize(("site", "how"), LISTED, ids=[site for site, _ in LISTED])
def test_an_example_runs_with_names_filled_in(site, how, project, capsys):
    command = site.partition(": ")[2]
    assert how["types"].startswith(command), site
    if "after" in how:
        _, shown = typed(how["after"], capsys)
        assert command in " ".join(shown.split()), shown
    code, shown = typed(how["types"], capsys)
    assert code in DONE, shown


@pytest.mark.parametrize("line", EXAMPLES)
def test_the_example_of_a_help_screen_runs(line, project, capsys, monkeypatch):
    for module in ("trainer.commands.runs", "sweep.commands.report"):
        monkeypatch.setattr(f"{module}.serve", lambda *_: 0)
    monkeypatch.setattr("trainer.commands.runs._run_id", lambda _: "0" * 32)
    monkeypatch.setattr("trainer.commands.stop.lock_owner", lambda _: "process 1 on this machine")
    of_campaign = line.startswith("sweep gate ") and not line.startswith("sweep gate start")
    if of_campaign:
        for before in ("start camp --worthwhile 0.01", *BEFORE.get(line.split()[2], ())):
            code, shown = typed(f"sweep gate {before}", capsys)
            assert code in DONE, shown
    code, shown = typed(line, capsys)
    assert code in DONE, shown


def test_the_examples_of_help_are_complete_lines(capsys, project):
    """Nothing is missing from a line of ``--help``: it is typed as it stands."""
    for program in ("trainer", "sweep"):
        _, shown = typed(f"{program} --help", capsys)
        listed = shown.partition("in the order of work:")[2].split("\n\n")[0].splitlines()
        commands = [line.strip().partition("   ")[0] for line in listed]
        commands = [command for command in commands if command.startswith(program)]
        assert len(commands) > 5
        for command in commands:
            code, told = typed(command, capsys)
            assert code in DONE, f"{command}: {told}"
            shutil.rmtree(project / "runs" / "quickstart-confirm", ignore_errors=True)
