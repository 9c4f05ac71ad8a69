"""The spaces of docs/guides/any_trainer.md run as they stand there."""

import pytest

from sweep.cli import main
from tests.run_cli import run_cli

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "trials"), [("shell", 8), ("function", 8), ("argparse", 3), ("hydra", 3)]
)
def test_the_example_runs_and_names_a_winner(name, trials, tmp_path, capsys):
    runs = ("--runs-dir", str(tmp_path))
    ended = run_cli("sweep", "run", f"examples/any_trainer/{name}.yaml", "--offline", *runs)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{trials} trials: {trials} complete" in ended.stdout and "warning" not in ended.stdout
    assert main(["export", name, "--baseline", "--output", str(tmp_path / "best.yaml"), *runs]) == 0
    assert "LOPTUNE_CONFIG=" in capsys.readouterr().out
