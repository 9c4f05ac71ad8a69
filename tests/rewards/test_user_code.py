import subprocess
import sys

import pytest

from rewards.user_code import UserCodeError, folder_of, load_named, place_of
from tests.paths import ROOT

GOOD = "VALUE = 1\n\n\ndef train(config, report):\n    raise KeyError(config)\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "good_code.py").write_text(GOOD)
    (tmp_path / "broken_code.py").write_text("\nimport no_such_module\n")
    return tmp_path


def test_code_is_found_in_the_current_folder_and_its_errors_located(project):
    train = load_named("good_code:train", "function")
    assert folder_of("good_code:train") == str(project)
    with pytest.raises(KeyError) as caught:
        train({}, None)
    assert place_of(caught.value, "good_code:train") == f"{project}/good_code.py:5"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("good_code:tran", ["good_code.py has no tran", "did you mean train?"]),
        ("broken_code:f", ["broken_code.py:2", "ModuleNotFoundError"]),
        ("no_such_code:f", ["add the folder of no_such_code.py to PYTHONPATH"]),
        ("rewards.mine:f", ["rewards is loptune's own package"]),
    ],
)
def test_code_that_cannot_be_loaded_is_named_with_its_place(project, name, words):
    with pytest.raises(UserCodeError) as caught:
        load_named(name, "reward")
    for word in ["reward ", *words]:
        assert word in str(caught.value)


def test_a_function_of_a_trial_fails_with_the_same_words(project):
    call = [sys.executable, "-P", "-m", "sweep.programs.call", "good_code:tran"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(call, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "function good_code:tran: " in done.stderr.splitlines()[-1]
