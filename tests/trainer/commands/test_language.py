import csv
import json

import numpy as np
import pytest

from trainer.cli import main
from trainer.commands.language import (
    Completions,
    analyze,
    read_completions,
    table_rows,
    write_results,
)
from trainer.errors import ConfigError, MissingError

# "so" makes 1 of 4 words in a rewarded completion and 2 of 2 in an unrewarded one.
ROWS = [{"step": 10, "completion": "So Zoey lies here", "reward": 3.0}] * 8 + [
    {"step": 20, "completion": "so, so", "reward": -1.0}
] * 4


@pytest.fixture
def run(tmp_path):
    (tmp_path / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def test_frequencies_bins_and_correlation_by_hand(run):
    results = {r.category: r for r in analyze(read_completions([run]))}
    so = results["conclusion indicator"]
    assert so.occurrences == 8 + 2 * 4
    assert so.per_completion == pytest.approx(16 / 12)
    assert so.per_100_words == pytest.approx((8 * 25 + 4 * 100) / 12)
    assert so.used_by == 1.0
    assert so.correlation == pytest.approx(-1.0)
    assert [(b.lowest, b.highest, b.completions, b.reward) for b in so.bins] == [
        (25.0, 25.0, 8, 3.0),
        (100.0, 100.0, 4, -1.0),
    ]
    unused = results["assumption"]
    assert unused.occurrences == 0
    assert np.isnan(unused.correlation)
    assert [b.completions for b in unused.bins] == [12]


def test_bins_hold_every_completion_once_and_their_own_rewards():
    generator = np.random.default_rng(1)
    texts = [" ".join(["so"] * n + ["word"] * (50 - n)) for n in generator.integers(0, 40, size=200)]
    rewards = np.array([float(text.count("so")) for text in texts])
    (so,) = [r for r in analyze(Completions(texts, rewards)) if r.category == "conclusion indicator"]
    assert sum(b.completions for b in so.bins) == 200
    assert len(so.bins) == 5
    for b in so.bins:  # the reward is the count of "so", which is half the rate per 100 words
        assert b.lowest / 2 <= b.reward <= b.highest / 2
    assert so.correlation == pytest.approx(1.0)
    assert so.low == pytest.approx(1.0, abs=0.02)


def test_a_step_can_be_chosen_and_an_absent_one_names_those_that_exist(run):
    assert len(read_completions([run], step=20).texts) == 4
    assert len(read_completions([run, run / "completions.jsonl"]).texts) == 24
    with pytest.raises(MissingError, match="there are steps 10, 20"):
        read_completions([run], step=30)


@pytest.mark.parametrize(
    ("line", "error", "what"),
    [
        ("{", ConfigError, "not JSON"),
        ("[]", ConfigError, "not list"),
        ('{"reward": 1}', ConfigError, "no column completion"),
        ('{"text": "a"}', ConfigError, "no column reward"),
        ('{"text": "a", "score": NaN}', ConfigError, "not a finite number"),
        ("", MissingError, "no completions"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, error, what):
    file = tmp_path / "own.jsonl"
    file.write_text('\n{"text": "fine", "score": 1}\n' + line if line else "")
    with pytest.raises(error, match=what) as caught:
        read_completions([file])
    assert "own.jsonl, line 3" in caught.value.where or error is MissingError


def test_too_few_completions_are_refused():
    with pytest.raises(MissingError, match="too few"):
        analyze(Completions(["so"] * 9, np.ones(9)))


def test_files_say_the_same_as_the_results(run):
    completions = read_completions([run])
    results = analyze(completions)
    whole, table, bins = write_results(results, completions, run / "out")
    content = json.loads(whole.read_text())
    assert content["completions"] == 12
    assert content["categories"][0]["correlation"] is None
    with table.open() as file:
        rows = {row["category"]: row for row in csv.DictReader(file)}
    assert float(rows["conclusion indicator"]["correlation"]) == pytest.approx(-1.0)
    assert rows["assumption"]["correlation"] == ""
    with bins.open() as file:
        assert len(list(csv.DictReader(file))) == sum(len(r.bins) for r in results)
    assert table_rows(results)[0]["correlation"] == "-"


def test_the_command_prints_a_table_or_json(run, capsys):
    assert main(["analyze-language", str(run), "--output", str(run / "out")]) == 0
    shown = capsys.readouterr().out
    assert "conclusion indicator" in shown
    assert "completions: 12, mean reward 1.667" in shown
    assert main(["analyze-language", str(run), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["categories"]) == 6
    assert main(["analyze-language", str(run), "--words", "wide", "--json"]) == 0
    assert "suppose" in json.loads(capsys.readouterr().out)["words"]["assumption"]
    assert main(["analyze-language", str(run / "absent")]) == 3
    assert "cannot read completions" in capsys.readouterr().err
