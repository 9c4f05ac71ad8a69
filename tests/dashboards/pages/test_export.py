import csv
import io
from pathlib import Path

from dashboards.pages.export import HEADINGS, picture_csv, write_csvs
from dashboards.pages.report import draw
from dashboards.pictures.figures import variants_compared
from dashboards.pictures.parameters import score_against
from tests.dashboards.table import sweep_of


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_holds_every_point() -> None:
    rows = read(picture_csv(score_against(sweep_of(), "algorithm.ar_alpha")))
    assert tuple(rows[0]) == HEADINGS
    assert [(row["series"], row["x"], row["y"]) for row in rows[:3]] == [
        ("grpo", "0.0", "0.5"),
        ("grpo", "0.0", "0.6"),
        ("grpo", "0.3", "0.7"),
    ]
    assert rows[2]["panel"] == "AR strength alpha / eval/accuracy"
    assert rows[2]["note"].startswith("trial 1-s0; #1 grpo α 0.3, seed 0; score 0.700")
    assert len(rows) == 9  # the failed trial has no score


def test_csv_holds_intervals() -> None:
    compared = variants_compared(sweep_of())
    assert compared is not None
    means = [row for row in read(picture_csv(compared)) if row["low"]]
    assert all(float(row["low"]) <= float(row["x"]) <= float(row["high"]) for row in means) and means


def test_pictures_without_a_drawing_have_no_file(tmp_path: Path) -> None:
    pictures = draw(sweep_of())
    names = {path.stem for path in write_csvs(pictures, tmp_path)}
    assert names == {picture.key for picture in pictures if picture.figures}
    assert "finalists" not in names and "curves" in names
