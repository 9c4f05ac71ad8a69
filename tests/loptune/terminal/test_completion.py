import re
from pathlib import Path

import pytest

from tests.run_cli import ENVIRONMENT, start_cli


def completed(line: str, folder: Path, tmp_path: Path) -> tuple[list[str], str]:
    """Return what a shell is offered after a line, and the modules that were imported for it."""
    answer = tmp_path / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "PYTHONPROFILEIMPORTTIME": "1",
    }
    with start_cli(line.split()[0], cwd=folder, environment={**ENVIRONMENT, **asked}) as process:
        _, imported = process.communicate(timeout=280)
    return [word.strip() for word in answer.read_text().splitlines()], imported


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("trainer run tiny", ["tiny_kk", "tiny_mine.yaml"]),
        ("trainer presets kk_3b:rpp_", ["kk_3b:rpp_ar", "kk_3b:rpp_lopti", "kk_3b:rpp_ar_lopti"]),
        ("trainer run tiny_kk algorithm.ar", ["algorithm.ar_alpha="]),
        ("trainer run tiny_kk --dry", ["--dry-run"]),
        ("trainer options algorithm.lopti_s", ["algorithm.lopti_split"]),
        ("trainer metrics policy/k", ["policy/kl"]),
        ("trainer resume ", ["first-run"]),
        ("trainer resume --runs-dir elsewhere ", []),
        ("sweep conf", ["confirm"]),
        ("sweep plan quick", ["quickstart"]),
        ("sweep run quickstart trainer.algorithm.ar", ["trainer.algorithm.ar_alpha="]),
        ("sweep status ", ["first-sweep"]),
    ],
)
def test_the_tab_key_completes_without_a_heavy_import(tmp_path, line, words):
    folder = tmp_path / "here"
    (folder / "runs" / "first-run").mkdir(parents=True)
    (folder / "runs" / "first-sweep").mkdir()
    for file in (
        "runs/first-run/config.yaml",
        "runs/first-sweep/space.lock.yaml",
        "tiny_mine.yaml",
    ):
        (folder / file).touch()
    offered, imported = completed(line, folder, tmp_path)
    assert offered == words
    assert "argcomplete" in imported
    assert not re.findall(r"\| +(torch|ray|mlflow|scipy)$", imported, re.MULTILINE)


def test_an_option_that_names_a_preset_is_completed(tmp_path):
    offered, _ = completed("trainer evaluate tiny --spec tiny_k", tmp_path, tmp_path)
    assert offered == ["tiny_kk"]
