import sys

import pytest

from benchmarks import forecast_coverage


def test_intervals_hold_more_where_their_level_is_higher(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["forecast_coverage", "--repeats", "2"])
    monkeypatch.setattr(forecast_coverage, "PACES", {"same pace": (0.0, 0.0)})
    forecast_coverage.main()
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if "same pace" in line]
    assert [row[1].strip() for row in rows] == ["3", "5", "8"]
    held = [[float(cell.split("±")[0]) for cell in row[2:5]] for row in rows]
    assert all(half <= most <= nearly for half, most, nearly in held)
