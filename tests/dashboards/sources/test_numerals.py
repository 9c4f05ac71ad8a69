"""Numbers as people write them."""

import pandas as pd
import pytest

from dashboards.sources.delimited import read_delimited
from dashboards.sources.numerals import are_versions
from tests.refusals import refused


def column(tmp_path, *cells, other=()):
    """The values of a column of a table with semicolons."""
    path = tmp_path / "table.csv"
    rows = [f"{place};{cell}" for place, cell in enumerate(cells)]
    if other:
        rows = [f"{row};{beside}" for row, beside in zip(rows, other, strict=True)]
    path.write_text("\n".join(["a;score" + (";other" if other else ""), *rows]))
    table = read_delimited(path)
    return table.score.tolist(), table.attrs["notes"]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["0,5", "1,25"], [0.5, 1.25]),
        (["0,950", "1,020"], [0.95, 1.02]),  # no group of thousands starts with 0
        (["950", "1,020"], [950, 1020]),
        (["1,020", "1,020.5"], [1020, 1020.5]),
        (["1,020,300", "1,020"], [1020300, 1020]),
        (["1.020,5", "2,5"], [1020.5, 2.5]),
        (["1 020", "950"], [1020, 950]),
        (["1'020", "1’020.5"], [1020, 1020.5]),
        (["-1,020", "-950"], [-1020, -950]),
    ],
)
def test_commas_are_read_as_the_column_shows(tmp_path, cells, expected):
    values, notes = column(tmp_path, *cells)
    assert values == expected and len(notes) == 1


def test_another_column_may_show_what_a_comma_means(tmp_path):
    assert column(tmp_path, "1,234", "2,345", other=["0.5", "0.25"])[0] == [1234, 2345]
    assert column(tmp_path, "1,234", "2,345", other=["0,5", "0,25"])[0] == [1.234, 2.345]
    with refused("ambiguous-comma", names=["column score"]):
        column(tmp_path, "1,234", "2,345")


def test_words_for_failed_runs_stay_beside_numbers(tmp_path):
    assert column(tmp_path, "0,5", "diverged", "1,5")[0] == [0.5, "diverged", 1.5]


def test_versions_stay_texts(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("version,acc\n1.1,0.5\n1.10,0.6\n")
    assert read_delimited(path).version.tolist() == ["1.1", "1.10"]
    assert not are_versions(pd.Series(["0.5", "0.25", "1e-3", "0.001"]))
