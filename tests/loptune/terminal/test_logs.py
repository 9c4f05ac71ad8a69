"""`--quiet` and `--verbose` of both programs: what goes to stdout and stderr, and exit statuses."""

import logging
import subprocess
import sys

import pytest

import sweep.cli
import trainer.cli
from loptune.terminal import logs
from tests.paths import ROOT
from tests.trainer.test_cli import TINY_RUN

UNKNOWN_KEY = ["run", "tiny_kk", "algorithm.ar_alpa=0.3"]


@pytest.fixture(autouse=True)
def normal_again():
    yield
    logs.set_up_logging("normal")


@pytest.mark.parametrize(
    ("verbosity", "shown"),
    [
        ("quiet", ["WARNING", "ERROR"]),
        ("normal", ["INFO", "WARNING", "ERROR"]),
        ("verbose", ["DEBUG", "INFO", "WARNING", "ERROR"]),
    ],
)
@pytest.mark.parametrize("name", ["trainer.hub", "sweep.record.disk"])
def test_each_verbosity_shows_its_levels_on_stderr(verbosity, shown, name, capsys):
    logs.set_up_logging(verbosity)
    for level in ("DEBUG", "INFO", "WARNING", "ERROR"):
        logging.getLogger(name).log(getattr(logging, level), "%s of a test", level)
    output = capsys.readouterr()
    lines = output.err.splitlines()
    assert output.out == ""
    if verbosity == "verbose":
        assert [line.split()[2] for line in lines] == shown
        assert all(f"{name}: " in line for line in lines)
    else:
        assert lines == [f"{level} of a test" for level in shown]


def test_setting_up_twice_prints_a_line_once(capsys):
    logs.set_up_logging("quiet")
    logs.set_up_logging("normal")
    logging.getLogger("trainer").warning("once")
    assert capsys.readouterr().err == "once\n"
    assert logs.progress_is_shown() and logs.verbose_handlers() == []


def test_a_program_that_configures_logging_keeps_its_own():
    code = (
        "import logging, sys\n"
        "logging.basicConfig(stream=sys.stdout, format='mine: %(message)s')\n"
        "from loptune.terminal.logs import set_up_if_unset\n"
        "set_up_if_unset()\n"
        "logging.getLogger('trainer.x').warning('careful')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("mine: careful\n", "")


@pytest.mark.parametrize("option", ["--quiet", "--verbose"])
@pytest.mark.parametrize("place", ["before", "behind"])
def test_the_options_stand_before_or_behind_a_command_and_keep_its_status(option, place, capsys):
    words = [option, *UNKNOWN_KEY] if place == "before" else [*UNKNOWN_KEY, option]
    assert trainer.cli.main(words) == 2
    output = capsys.readouterr()
    assert output.out == "" and "error: " in output.err
    assert ("Traceback" in output.err) == (option == "--verbose")


def test_every_command_of_both_programs_takes_the_options():
    for name in trainer.cli.COMMANDS:
        options = {
            word
            for action in _choices(trainer.cli.build_parser([name]))[name]._actions
            for word in action.option_strings
        }
        assert {"--quiet", "--verbose"} <= options, name
    for name, parser in _choices(sweep.cli.build_parser()).items():
        options = {word for action in parser._actions for word in action.option_strings}
        assert {"--quiet", "--verbose"} <= options, name


def _choices(parser):
    [commands] = [action for action in parser._actions if hasattr(action.choices, "items")]
    return commands.choices


def test_a_quiet_run_prints_no_progress(tmp_path, capsys):
    def run(name, *options):
        place = ["--runs-dir", str(tmp_path), "--offline", "--name", name]
        assert trainer.cli.main(["run", "tiny_kk", *TINY_RUN, *place, *options]) == 0
        return capsys.readouterr().out

    quiet = run("a", "--quiet")
    normal = run("b")
    verbose = run("c", "--verbose")
    assert "step 1/1" not in quiet and "eval at step" not in quiet
    assert "step 1/1" in normal and "step 1/1" in verbose
    assert (tmp_path / "a/metrics.jsonl").exists()
