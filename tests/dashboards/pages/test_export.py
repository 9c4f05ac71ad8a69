import csv
import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dashboards.pages.export import HEADINGS, picture_csv, write_csvs, write_pngs
from dashboards.pages.report import draw
from dashboards.pictures.curves import learning_curves
from dashboards.pictures.figures import variants_compared
from dashboards.pictures.parameters import score_against
from tests.dashboards.table import sweep_of
from trainer.errors import MissingError


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


def test_png_without_a_browser_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "chromium"))
    with pytest.raises(MissingError, match="need Chromium or Chrome"):
        write_pngs([learning_curves(sweep_of())], tmp_path)


def test_png_without_kaleido_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kaleido", None)  # importing it raises
    with pytest.raises(MissingError, match="need kaleido") as raised:
        write_pngs([learning_curves(sweep_of())], tmp_path)
    assert "loptune[png]" in str(raised.value)


@pytest.mark.slow
def test_png_of_every_figure(tmp_path: Path, chromium: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER_PATH", chromium)
    compared = variants_compared(sweep_of())
    assert compared is not None
    paths = write_pngs([replace(compared, figures=compared.figures * 2)], tmp_path)
    assert [path.name for path in paths] == ["variants.png", "variants-2.png"]
    for path in paths:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG") and int.from_bytes(content[16:20], "big") == 1800  # width in pixels
        assert len(content) > 5000  # an empty white picture is smaller
