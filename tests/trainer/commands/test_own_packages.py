import subprocess
import sys

import pytest

from tests.paths import ROOT
from trainer.commands.own_packages import check_folder
from trainer.errors import ConfigError


def test_our_own_folder_and_other_names_are_fine(tmp_path):
    check_folder(ROOT)
    (tmp_path / "my_rewards.py").touch()
    (tmp_path / "sweep").mkdir()  # without __init__.py it hides nothing
    check_folder(tmp_path)


@pytest.mark.parametrize("name", ["rewards.py", "trainer/__init__.py", "sweep/__init__.py"])
def test_a_file_that_would_be_imported_instead_of_ours_is_named(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    shown = tmp_path / name.removesuffix("/__init__.py")
    with pytest.raises(ConfigError, match="would be imported instead of loptune's package") as caught:
        check_folder(tmp_path)
    assert caught.value.where == str(shown)


def test_a_run_and_its_scoring_find_our_packages_first(tmp_path, monkeypatch):
    (tmp_path / "rewards.py").write_text("raise SystemExit('imported the wrong one')")
    code = (
        "from rewards.sandbox import RewardPool\n"
        "pool = RewardPool({'format': 1.0}, timeout_s=5, memory_mb=600, workers=1, failure_score=None)\n"
        "print(pool.score([''], [''])[0].status)\n"
        "pool.close()"
    )
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    scored = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (scored.stdout, scored.stderr) == ("ok\n", "")
    shown = subprocess.run(
        [sys.executable, "-m", "trainer", "presets", "base"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0 and "name_or_path" in shown.stdout
