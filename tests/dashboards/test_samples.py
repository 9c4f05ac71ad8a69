import json
from pathlib import Path
from typing import Any

from dashboards.samples import MAX_CHARACTERS, MAX_PROBLEMS, read_samples

COLUMNS = ["problem", "prompt", "completion", "reward", "correct", "answer", "difficulty", "step", "set"]


def record(folder: Path, trial: str, rows: list[list[Any]]) -> tuple[str, str, str]:
    """A run whose artifacts lie on this machine; (trial, run id, URI)."""
    (folder / trial).mkdir()
    (folder / trial / "completions.json").write_text(json.dumps({"columns": COLUMNS, "data": rows}))
    return trial, f"run-{trial}", (folder / trial).as_uri()


def row(problem: int, completion: str, correct: bool, step: int = 20) -> list[Any]:
    return [f"p{problem}", f"prompt {problem}", completion, float(correct), correct, "42", "3", step, "dev"]


def test_the_last_answers_of_both_and_first_where_only_one_is_right(tmp_path: Path) -> None:
    one = [
        row(0, "early", False, 10),
        row(0, "a", True),
        row(0, "second", False),
        row(1, "b", True),
        row(2, "c", True),
    ]
    other = [row(0, "d", True), row(1, "e", False), row(3, "f", True)]
    found = read_samples(None, [record(tmp_path, "base", one), record(tmp_path, "best", other)])
    assert [problem.prompt for problem in found] == ["prompt 1", "prompt 0"]
    assert found[0].completions == {"base": ("b", 1.0, True), "best": ("e", 0.0, False)}
    assert found[1].completions["base"] == ("a", 1.0, True)
    assert (found[0].answer, found[0].difficulty) == ("42", "3")


def test_long_texts_and_many_problems_are_cut(tmp_path: Path) -> None:
    rows = [row(number, "x" * 10_000 + "end", True) for number in range(9)]
    found = read_samples(None, [record(tmp_path, "base", rows)])
    assert len(found) == MAX_PROBLEMS
    text = found[0].completions["base"][0]
    assert text.startswith("... x") and text.endswith("end") and len(text) == MAX_CHARACTERS + 4


def test_without_a_readable_table_of_every_trial_there_is_nothing_to_compare(tmp_path: Path) -> None:
    base = record(tmp_path, "base", [row(0, "a", True)])
    broken = record(tmp_path, "broken", [])
    assert read_samples(None, [base, broken]) == []
    (tmp_path / "broken" / "completions.json").write_text('{"columns": ["step"], "data": [[')
    assert read_samples(None, [base, broken]) == []
    assert read_samples(None, []) == []
