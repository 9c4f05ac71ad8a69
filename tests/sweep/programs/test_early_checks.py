"""What is missing is found before anything is started or written."""

import pytest

from sweep.cli import main
from tests.sweep.harness import SHORT, write_space


def refused(space, capsys):
    runs = space.parent / "runs"
    code = main(["run", str(space), "--runs-dir", str(runs), "--offline"])
    assert not runs.exists()
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value", "code", "message"),
    [
        ("model.name_or_path", "{here}", 3, "error: no safetensors weights in {here}"),
        ("data.train", "{here}/missing.parquet", 3, "{here}/missing.parquet"),
        ("evaluation.sets", {"dev": "missing.parquet"}, 3, "missing.parquet"),
        (
            "reward.functions",
            {"tests.trainer.failing_rewards:raising": 1.0},
            2,
            "on the first problem",
        ),
    ],
)
def test_missing_or_broken_inputs_of_every_trial(tmp_path, capsys, key, value, code, message):
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "hidden_size": 8}')
    overrides = {**SHORT, key: value.format(here=tmp_path) if isinstance(value, str) else value}
    space = write_space(
        tmp_path / "space.yaml", trainer={"preset": "tiny_kk", "overrides": overrides}
    )
    exit_code, err = refused(space, capsys)
    assert exit_code == code
    assert message.format(here=tmp_path) in err


def test_a_searched_model_is_looked_at_too(tmp_path, capsys):
    parameters = {"model.name_or_path": {"choice": ["tiny", str(tmp_path / "nowhere")]}}
    space = write_space(tmp_path / "space.yaml", parameters=parameters, baselines=[])
    code, err = refused(space, capsys)
    assert code == 3
    assert "[no-such-model]" in err and str(tmp_path / "nowhere") in err


def test_a_searched_rule_that_cannot_train_is_refused_with_its_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "late_rules.py").write_text("def late(tokens):\n    return tokens.no_such_field\n")
    parameters = {"algorithm.loss": {"choice": ["clipped", "late_rules:late"]}}
    space = write_space(tmp_path / "space.yaml", parameters=parameters, baselines=[])
    code, err = refused(space, capsys)
    assert code == 2
    assert all(data in err for data in ("late_rules:late", "AttributeError", "'no_such_field'"))
    assert f"where: {tmp_path / 'late_rules.py'}:2" in err
