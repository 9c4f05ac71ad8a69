import subprocess
import sys

import pytest

from loptune.errors import ConfigError, StorageError
from tests.refusals import refused
from trainer.commands.init import write_project
from trainer.config.schema import load_config


def test_the_project_is_a_run_that_extends_base(tmp_path):
    written = {path.name for path in write_project(tmp_path / "mine")}
    assert written == {
        "run.schema.json",
        "run.yaml",
        "space.yaml",
        "my_rewards.py",
        "test_my_rewards.py",
        "train.jsonl",
        "dev.jsonl",
    }
    config = load_config(str(tmp_path / "mine" / "run.yaml"))
    base = load_config("base")
    assert config.optim.lr == base.optim.lr == 1e-6
    assert config.model.name_or_path == "Qwen/Qwen2.5-0.5B-Instruct"
    assert config.reward.functions == {"my_rewards:exact": 1.0}
    assert config.rollout.prompts_per_step == 4  # as many as there are example rows
    assert len((tmp_path / "mine" / "train.jsonl").read_text().splitlines()) == 4


def test_the_example_reward_passes_its_test(tmp_path):
    write_project(tmp_path)
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, capture_output=True, text=True
    )
    assert tests.returncode == 0 and "2 passed" in tests.stdout


@pytest.mark.parametrize("name", ["org/model-1.5B", "./with: colon", "#7"])
def test_the_model_is_written_as_it_was_given(tmp_path, name):
    write_project(tmp_path / "mine", name)
    assert load_config(str(tmp_path / "mine" / "run.yaml")).model.name_or_path == name


def test_a_model_folder_is_found_from_inside_the_project(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path / "mine", "model")
    assert load_config(str(tmp_path / "mine" / "run.yaml")).model.name_or_path == str(
        tmp_path / "model"
    )


def test_the_embedded_policy_is_no_model_for_other_data(tmp_path):
    with refused("tiny-reads-only-puzzles", ConfigError) as raised:
        write_project(tmp_path / "mine", "tiny")
    assert "--model random" in raised.value.hint and "smollm2-135m" in raised.value.hint
    assert not (tmp_path / "mine").exists()


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "run.yaml").write_text("mine")
    with refused("files-exist", ConfigError, names=("run.yaml",)):
        write_project(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_a_file_in_the_place_of_the_folder_is_an_error(tmp_path, typed):
    (tmp_path / "mine").touch()
    with refused("folder-not-writable", StorageError):
        write_project(tmp_path / "mine")
    assert len(typed("trainer init", tmp_path / "mine", code=4).splitlines()) == 3
