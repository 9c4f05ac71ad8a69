import re

import pytest

from sweep import cli
from sweep.cli import main
from tests.sweep.harness import write_space
from trainer import cli as trainer_cli


@pytest.mark.parametrize("name", ["../x", "/x", "a\nb", "n" * 300])
def test_a_bad_name_exits_2_and_writes_nothing(tmp_path, name, capsys):
    space = write_space(tmp_path / "space.yaml")
    before = sorted(tmp_path.rglob("*"))
    for verb in (
        ["run", str(space), "--name", name],
        ["resume", name],
        ["status", name],
        ["stop", name],
    ):
        assert main([*verb, "--runs-dir", str(tmp_path / "runs")]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 3
    assert sorted(tmp_path.rglob("*")) == before


def test_a_configuration_and_the_baseline_are_not_exported_at_once(capsys):
    with pytest.raises(SystemExit):
        main(["export", "demo", "--baseline", "--configuration", "1"])
    assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.parametrize("program", [cli, trainer_cli])
def test_help_lists_commands_in_the_order_of_work(program, capsys):
    with pytest.raises(SystemExit):
        program.main(["--help"])
    listed = re.findall(r"^    (\w+)  ", capsys.readouterr().out, re.M)
    work = ["plan", "init", "run", "status", "resume", "confirm", "report", "export"]
    shown = [name for name in work if name in listed]
    assert [name for name in listed if name in work] == shown and len(shown) > 4


def test_words_that_nobody_reads_are_refused(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["status", "demo", "a=b"])
    assert caught.value.code == 2
    assert "unrecognized arguments" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("run x.yaml --naem=x", "did you mean --name?"),
        ("run x.yaml --dry-run", "sweep plan"),
        ("ls --what", "see `sweep ls --help`"),
    ],
)
def test_options_that_nobody_reads_are_refused(line, hint, capsys):
    assert main(line.split()) == 2
    refused = capsys.readouterr().err
    assert "[unknown-option]" in refused and hint in refused
