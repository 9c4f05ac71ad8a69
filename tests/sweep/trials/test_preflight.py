"""What is missing is found before anything is started or written."""

import json
from pathlib import Path
from typing import Any

import pytest

from sweep.cli import main
from tests.sweep.harness import SHORT, write_space

CONFIG_ONLY = {"model_type": "qwen2", "hidden_size": 8}


def space_with(path: Path, **overrides: Any) -> Path:
    return write_space(path / "space.yaml", trainer={"preset": "tiny_kk", "overrides": {**SHORT, **overrides}})


def refused(space: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    runs = space.parent / "runs"
    code = main(["run", str(space), "--runs-dir", str(runs), "--offline"])
    assert not runs.exists()
    return code, capsys.readouterr().err


def test_a_model_folder_without_weights_exits_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG_ONLY))
    code, err = refused(space_with(tmp_path, **{"model.name_or_path": str(model)}), capsys)
    assert code == 3
    assert err.splitlines()[-3] == f"error: no safetensors weights in {model}"


def test_a_searched_model_is_looked_at_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parameters = {"model.name_or_path": {"choice": ["tiny", str(tmp_path / "nowhere")]}}
    space = write_space(tmp_path / "space.yaml", parameters=parameters, baselines=[])
    code, err = refused(space, capsys)
    assert code == 3
    assert f"no such model folder: {tmp_path / 'nowhere'}" in err


@pytest.mark.parametrize("key", ["data.train", "evaluation.sets"])
def test_missing_data_exits_3(tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "missing.parquet")
    value: Any = missing if key == "data.train" else {"dev": missing}
    code, err = refused(space_with(tmp_path, **{key: value}), capsys)
    assert code == 3
    assert missing in err


def test_a_reward_that_fails_on_the_first_row_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = space_with(tmp_path, **{"reward.functions": {"tests.trainer.failing_rewards:raising": 1.0}})
    code, err = refused(space, capsys)
    assert code == 2
    assert "the reward fails on the first problem: RuntimeError: no such luck" in err


def test_a_searched_rule_that_cannot_train_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "late_rules.py").write_text("def late(tokens):\n    return tokens.no_such_field\n")
    parameters = {"algorithm.loss": {"choice": ["clipped", "late_rules:late"]}}
    space = write_space(tmp_path / "space.yaml", parameters=parameters, baselines=[])
    code, err = refused(space, capsys)
    assert code == 2
    assert "rule late_rules:late raised AttributeError: 'LossInputs' object has no attribute 'no_such_field'" in err
    assert f"where: {tmp_path / 'late_rules.py'}:2" in err
