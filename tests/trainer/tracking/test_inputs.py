import json

import pytest

from loptune.errors import ConfigError, StorageError
from loptune.mlflow_runs import CHANGES_TAG
from tests.refusals import refused
from tests.trainer.test_cli import TINY_RUN, error_lines, run
from trainer.cli import main
from trainer.config.schema import load_config
from trainer.tracking.inputs import (
    change_tags,
    check_inputs,
    inherit_inputs,
    input_files,
    module_files,
    record_inputs,
)

ROW = '{"prompt": "1+1", "answer": "2"}\n'
FILES = {
    "train.jsonl": ROW,
    "dev.jsonl": ROW,
    "judge.py": "import json\nfrom parts import words\n",
    "parts/__init__.py": "",
    "parts/words.py": "from . import numbers\n",
    "parts/numbers.py": "",
    "other.py": "",
}
# Run files -> what is done to one of them, and what is said about it.
CHANGES = [
    ("train.jsonl", ROW * 2, "train.jsonl (training data) has changed (33 bytes -> 66 bytes)"),
    (
        "dev.jsonl",
        ROW.replace("2", "3"),
        "dev.jsonl (evaluation set dev) has changed (its size is still 33 bytes)",
    ),
    ("judge.py", None, "judge.py (reward judge:exact) was removed"),
    (
        "parts/numbers.py",
        "x = 1\n",
        "parts/numbers.py (imported by judge) has changed (0 bytes -> 6 bytes)",
    ),
    ("judge.py", "def (", "judge.py (reward judge:exact) has changed (36 bytes -> 5 bytes)"),
    ("other.py", "x = 1\n", None),
]


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    config = load_config(
        "tiny_kk",
        {
            "data.train": "train.jsonl",
            "evaluation.sets": {"dev": {"source": "dev.jsonl"}, "generated": {"size": 4}},
            "reward.functions": {
                "judge:exact": 1.0,
                "rewards.knights_knaves:fraction_correct": 0.5,
                "format": 0.1,
            },
        },
    )
    (tmp_path / "r").mkdir()
    record_inputs(tmp_path / "r", input_files([config]))
    return tmp_path


@pytest.mark.parametrize(("name", "text", "change"), CHANGES)
def test_a_changed_input_is_refused_unless_accepted(project, name, text, change):
    assert check_inputs(project / "r", "run", accept=False) == []
    (project / name).write_text(text) if text is not None else (project / name).unlink()
    if change is None:
        assert check_inputs(project / "r", "run", accept=False) == []
        return
    with refused("inputs-changed", ConfigError, names=(change,)):
        check_inputs(project / "r", "run", accept=False)
    assert check_inputs(project / "r", "run", accept=True) == [change]


@pytest.mark.parametrize("damage", ["{", "[]", '{"files": 1, "accepted": []}'])
def test_a_damaged_record_is_not_taken_for_none(project, damage):
    (project / "r" / "inputs.json").write_text(damage)
    with refused("inputs-unreadable", StorageError):
        check_inputs(project / "r", "run", accept=True)


def test_the_modules_of_a_folder_of_installed_packages_are_not_followed(project, monkeypatch):
    """`pip install --target` fills such folders, and PYTHONPATH names them on many clusters."""
    packages = project / "apps"
    (packages / "words-1.0.dist-info").mkdir(parents=True)
    (packages / "words.py").write_text("")
    monkeypatch.syspath_prepend(packages)
    (project / "judge.py").write_text("import words\nimport other\n")
    named = {path.name for path, _ in module_files("judge", "reward", project)}
    assert named == {"judge.py", "other.py"}


def test_accepted_changes_add_up_and_pass_on(project):
    config = load_config("tiny_kk", {"data.train": "train.jsonl"})
    for accepted in ("one", "two"):
        record_inputs(project / "r", input_files([config]), [accepted])
    inherit_inputs(project / "fresh", project / "r")
    for folder in ("r", "fresh"):
        assert [text[18:] for text in change_tags(project / folder)[CHANGES_TAG].split("; ")] == [
            "one",
            "two",
        ]
    assert check_inputs(project, "run", accept=False) == []  # where nothing was recorded


def test_a_run_goes_on_with_a_changed_reward_only_when_told(
    tmp_path, monkeypatch, capsys, tiny_policy
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge.py").write_text("def exact(text, answer): return 0.0\n")
    words = [f"model.name_or_path={tiny_policy}", *TINY_RUN, "reward.functions={judge:exact: 1.0}"]
    assert run(tmp_path, "--name", "r", *words) == 0
    (tmp_path / "judge.py").write_text("def exact(text, answer): return 1.0\n")
    resume = ["resume", "r", "max_steps=2"]
    capsys.readouterr()
    assert main(resume) == 2
    assert "judge.py (reward judge:exact) has changed" in error_lines(capsys)[0]
    assert main([*resume, "--accept-changes"]) == 0
    state = json.loads((tmp_path / "runs" / "r" / "tracking.json").read_text())
    assert "judge.py" in state["tags"]["loptune.accepted_changes"]
    assert (tmp_path / "runs" / "r" / "inputs.json").is_file()
