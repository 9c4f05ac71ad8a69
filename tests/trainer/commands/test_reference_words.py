"""Options under the names that users of other tools look for, and the values of Tab completion."""

import pytest

from trainer.cli import main
from trainer.commands.reference import _SYNONYMS, find_options, values_of


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("budget", "max_steps"),
        ("learning rate", "optim.lr"),
        ("num_generations", "rollout.group_size"),
        ("wandb", "tracking.report_to"),
        ("beta", "algorithm.kl_coef"),
        ("reference model", "algorithm.kl_coef"),  # in its description
    ],
)
def test_an_option_is_found_by_what_others_call_it(word, key):
    assert key in [option.key for option in find_options(word)]


def test_synonyms_name_options_that_exist():
    keys = {option.key for option in find_options()}
    assert {key for meant in _SYNONYMS.values() for key in meant} <= keys


def test_several_words_are_one_text(capsys):
    assert main(["options", "learning", "rate"]) == 0
    assert capsys.readouterr().out.startswith("optim.lr = ")


def test_values_are_completed():
    assert {"clipped", "gspo", "cispo"} <= set(values_of("algorithm.loss"))
    assert values_of("rollout.dynamic_sampling") == ["true", "false"]
    assert values_of("optim.lr") == []


@pytest.mark.parametrize(
    ("words", "nearest"), [(["stauts"], "status"), (["--quiet", "evalute", "x"], "evaluate")]
)
def test_an_unknown_command_names_the_nearest(words, nearest, capsys):
    assert main(words) == 2
    printed = capsys.readouterr().err
    assert "[no-command]" in printed and nearest in printed


def test_a_missing_file_names_the_nearest_and_where_it_was_sought(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("max_steps: 1")
    assert main(["run", "mine.yml"]) == 3
    printed = capsys.readouterr().err
    assert "[no-such-file]" in printed and "mine.yaml" in printed
    assert str(tmp_path / "mine.yml") in printed
    assert main(["run", "absent/mine.yml"]) == 3
    printed = capsys.readouterr().err
    assert "[no-such-file]" in printed and " absent:" in printed


def test_status_without_a_name_is_the_newest_run(tmp_path, capsys):
    assert main(["status", "--runs-dir", str(tmp_path)]) == 3
    assert "[no-runs]" in capsys.readouterr().err
