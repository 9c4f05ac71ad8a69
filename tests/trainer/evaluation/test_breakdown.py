import pytest

from tests.trainer.evaluation.test_evaluate import FIRST, SETS, rollout
from trainer.commands.evaluation_run import print_rows
from trainer.evaluation.breakdown import evaluation_rows
from trainer.evaluation.evaluate import EvaluationResult


def test_rows_distinguish_timeouts_errors_and_unreadable_answers():
    rows = evaluation_rows(EvaluationResult(SETS, {}))
    assert [
        tuple(r[key] for key in ("set", "by", "value", "problems", "completions")) for r in rows
    ] == [
        ("dev", "all", "", 3, 6),
        ("dev", "difficulty", "2", 1, 2),
        ("dev", "difficulty", "10", 2, 4),  # by size, not by letter
        ("dev", "source", "a", 2, 4),
        ("dev", "source", "b", 1, 2),
        ("other", "all", "", 1, 2),
    ]
    whole = rows[0]
    assert (whole["accuracy"], whole["pass_at_k"]) == pytest.approx((0.5, 2 / 3))
    assert (
        whole["timeouts"],
        whole["errors"],
        whole["unparsed"],
        whole["truncated"],
    ) == pytest.approx((1 / 6,) * 4)
    assert 0.0 <= whole["low"] < 0.5 < whole["high"] <= 1.0
    assert (rows[2]["accuracy"], rows[2]["pass_at_k"], rows[2]["errors"]) == (0.5, 0.5, 0.25)


def test_the_printed_table_names_what_was_measured(capsys):
    sets = {"dev": [FIRST[0], FIRST[2]], "amc": FIRST}
    print_rows([row for row in evaluation_rows(EvaluationResult(sets, {})) if row["by"] == "all"])
    head, greedy, sampled = (line.split() for line in capsys.readouterr().out.strip().splitlines())
    assert head[2:6] == ["problems", "completions", "each", "accuracy"]
    assert (greedy[:5], greedy[8]) == (["dev", "all", "2", "1", "0.500"], "-")
    assert (sampled[:5], sampled[8:10]) == (["amc", "all", "3", "2", "0.500"], ["0.667", "@2"])
    assert sampled[-4:] == ["16.7%"] * 4


def test_bands_are_in_the_order_of_their_lower_ends_and_words_come_last():
    values = ["10-20", "hard", "2.5", "0-9", "", "easy"]
    rollouts = [rollout(group, True, difficulty) for group, difficulty in enumerate(values)]
    rows = evaluation_rows(EvaluationResult({"dev": rollouts}, {}))
    assert [row["value"] for row in rows if row["by"] == "difficulty"] == [
        "0-9",
        "2.5",
        "10-20",
        "",
        "easy",
        "hard",
    ]


def test_a_set_of_one_difficulty_and_source_has_one_row():
    rows = evaluation_rows(EvaluationResult({"dev": [rollout(0, True), rollout(1, False)]}, {}))
    assert [(row["by"], row["accuracy"]) for row in rows] == [("all", 0.5)]


def test_what_a_data_set_says_of_itself_commands_no_terminal(capsys):
    rollouts = [rollout(0, True, source="a\x1b[2J"), rollout(1, True, source="")]
    print_rows(evaluation_rows(EvaluationResult({"dev": rollouts}, {})))
    shown = capsys.readouterr().out
    assert r"source a\x1b[2J" in shown and "\x1b" not in shown
    assert "source none" in shown
