"""Runs with unequal evaluations: the page prints the tables of today's code."""

from research.unequal_grids import real_row, simulated_row
from tests.paths import ROOT

PAGE = "docs/development/validation_tables.md"


def printed(first: list[str]) -> list[str]:
    """The row of the page that starts with these cells."""
    section = (ROOT / PAGE).read_text(encoding="utf-8").split("## Runs with unequal evaluations")[1]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines()]
    [row] = [row for row in rows if row[: len(first)] == first]
    return row


def test_the_page_prints_the_coverage_of_simulated_curves():
    row = simulated_row(5, by_axis=True)
    assert row == printed(["5", "--axis tokens"])
    assert row[5].startswith("0.0 ")  # no wrong sign


def test_the_page_prints_the_false_claims_on_real_trainings():
    row = real_row("largest common amount", 200)
    assert row == printed(["largest common amount"])
    assert float(row[1].split(" ")[0]) <= 5
