import pytest

from sweep.cli import main
from tests.sweep.harness import write_space


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


@pytest.mark.parametrize(
    "words", [["status", "demo", "a=b"], ["run", "x.yaml", "--naem=x"], ["ls", "--what"]]
)
def test_words_that_nobody_reads_are_refused(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "unrecognized arguments" in capsys.readouterr().err
