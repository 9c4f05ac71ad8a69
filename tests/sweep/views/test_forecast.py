import json
from pathlib import Path

import pytest

from sweep.record.sweep_record import open_sweep
from sweep.views.forecast import forecasts
from tests.sweep.ended_sweeps import write_sweep


def test_unfinished_trials_have_a_forecast_once_four_are_whole(tmp_path: Path) -> None:
    write_sweep(
        tmp_path,
        "demo",
        {number: {0: 0.5} for number in range(5)},
        trainer={"preset": "tiny_kk", "overrides": {"max_steps": 50}},
    )
    sweep = open_sweep(tmp_path, "demo")
    assert sweep.spec.evaluations == 5

    def evaluate(number: int, count: int) -> None:
        values = [{"step": 10 * n, "eval/accuracy": 0.3 + 0.02 * number + 0.04 * n} for n in range(count + 1)]
        lines = "".join(json.dumps(value) + "\n" for value in values)
        (sweep.folder.trial(f"c{number:03d}-s0") / "metrics.jsonl").write_text(lines)

    for number, count in enumerate((5, 5, 5, 4, 2)):
        evaluate(number, count)
    assert forecasts(sweep) == {}  # three whole trials cannot tell
    evaluate(3, 5)
    ((name, (mean, low, high)),) = forecasts(sweep).items()
    assert name == "c004-s0"
    assert low < mean < high
    assert mean == pytest.approx(0.3 + 0.08 + 0.04 * 4, abs=0.03)  # its window holds evaluations 3, 4 and 5
