import json

import numpy as np
import pytest

from trainer.evaluation.correctness import correctness_record, read_correctness


def test_a_record_is_read_as_it_was_written(tmp_path):
    counts = np.array([4, 0, 3, 1])
    record = correctness_record(
        {"dev": (counts, np.full(4, 4)), "many": (np.array([40, 7]), np.full(2, 40))}
    )
    assert record["sets"]["dev"] == {"completions": 4, "correct": [4, 0, 3, 1]}
    path = tmp_path / "correctness.jsonl"
    path.write_text(json.dumps({"step": 20, **record}) + "\n", encoding="utf-8")
    correctness = read_correctness(path)
    assert (
        correctness["dev"][20][0] == pytest.approx([1, 0, 0.75, 0.25])
        and correctness["dev"][20][1] == 4
    )
    assert (
        correctness["many"][20][0] == pytest.approx([1, 0.175]) and correctness["many"][20][1] == 40
    )
