import json

import numpy as np
import pytest

from trainer.cli import main
from trainer.errors import MissingError
from trainer.paper.language import PAPER, Completions, analyze, count_phrases, read_completions

# "so" makes 1 of 4 words in a rewarded completion and 2 of 2 in an unrewarded one.
ROWS = [{"step": 10, "completion": "So Zoey lies here", "reward": 3.0}] * 8 + [
    {"step": 20, "completion": "so, so", "reward": -1.0}
] * 4


@pytest.fixture
def run(tmp_path):
    (tmp_path / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def test_frequencies_and_correlation_by_hand(run):
    results = {r.category: r for r in analyze(read_completions([run]))}
    so = results["conclusion indicator"]
    assert so.occurrences == 8 + 2 * 4
    assert so.per_100_words == pytest.approx((8 * 25 + 4 * 100) / 12)
    assert so.used_by == 1.0
    assert so.correlation == pytest.approx(-1.0)
    unused = results["assumption"]
    assert unused.occurrences == 0
    assert np.isnan(unused.correlation)


def test_a_perfect_correlation_has_a_narrow_interval():
    generator = np.random.default_rng(1)
    texts = [" ".join(["so"] * n + ["word"] * (50 - n)) for n in generator.integers(0, 40, size=200)]
    rewards = np.array([float(text.count("so")) for text in texts])
    (so,) = [r for r in analyze(Completions(texts, rewards)) if r.category == "conclusion indicator"]
    assert so.correlation == pytest.approx(1.0)
    assert so.low == pytest.approx(1.0, abs=0.02)


def test_a_step_can_be_chosen_and_an_absent_one_names_those_that_exist(run):
    assert len(read_completions([run], step=20).texts) == 4
    assert len(read_completions([run, run]).texts) == 24
    with pytest.raises(MissingError, match="there are steps 10, 20"):
        read_completions([run], step=30)


def test_too_few_completions_are_refused():
    with pytest.raises(MissingError, match="too few"):
        analyze(Completions(["so"] * 9, np.ones(9)))


def test_the_command_prints_a_table_or_json(run, capsys):
    assert main(["analyze-language", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "conclusion indicator" in shown
    assert "completions: 12, mean reward 1.667" in shown
    assert main(["analyze-language", str(run), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert len(shown) == 6 and shown[0]["correlation"] is None
    assert main(["analyze-language", str(run / "absent")]) == 3
    assert "there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("category", "text", "count"),
    [
        ("analysis", "Let us ANALYZE it: we analyzed, considered, looked  at and checked.", 5),
        ("analysis", "His analysis considers looking at checks; examiner.", 0),
        ("analysis", "look\nat", 1),
        ("statement", "Ava's statement and Ben’s statements; the statement; Ava's stated", 2),
        ("causal indicator", "Since it rains, because due to that, given that; due, given", 4),
        ("conclusion indicator", "So, also SO; soon so-so. As a result, as result. Hence therefore.", 7),
        ("assumption", "Assume A. If B is true then C, if D. Then E", 2),
        ("assumption", "if A then B if C then D", 2),
        ("assumption", "If we assume A, then B", 2),
        ("assertion", "It must be definite, must not be definitely; must  be", 3),
        ("assertion", "", 0),
    ],
)
def test_the_papers_phrases_are_whole_in_any_case_and_in_its_inflections_alone(category, text, count):
    assert count_phrases(text, PAPER[category]) == count
