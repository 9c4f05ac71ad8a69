import numpy as np
import pytest

from dashboards.pages.outliers import at_the_edge, bounds
from dashboards.pictures.theme import figure


def test_a_collapsed_run_stands_at_the_edge_and_is_counted() -> None:
    values = np.linspace(0.50, 0.59, 10)
    low, high = bounds(np.append(values, 0.0))
    assert 0.49 < low < 0.50 and 0.59 < high < 0.60
    drawing = figure("step", "score")
    drawing.add_scatter(x=np.arange(11), y=np.append(values, 0.0), hovertext=["collapsed"])
    kept = at_the_edge(drawing)
    assert list(kept.layout.yaxis.range) == [low, high] and kept.data[0].y[-1] == low
    assert [note.text for note in kept.layout.annotations] == ["1 of 11 points lie beyond, as far as 0"]
    assert drawing.data[0].y[-1] == 0  # the numbers beside the page are what was measured


@pytest.mark.parametrize(("better", "cut"), [("max", [-2.0]), ("min", []), ("", [-2.0, 1.0])])
def test_the_best_points_are_never_cut_off(better: str, cut: list[float]) -> None:
    drawing = figure("difference of eval/reward")
    drawing.add_scatter(x=[*np.linspace(0.50, 0.59, 20), -2.0, 1.0], y=["a"] * 22)
    kept = set(at_the_edge(drawing, "eval/reward", better).data[0].x)
    assert {-2.0, 1.0} - kept == set(cut)
    assert not {-2.0, 1.0} & set(at_the_edge(drawing, "eval/accuracy", better).data[0].x)


def test_rows_are_cut_along_their_scores_and_nothing_else_is_touched() -> None:
    rows = figure("difference")
    rows.add_scatter(x=[*np.linspace(0, 0.1, 9), -5.0], y=["a"] * 10)
    assert at_the_edge(rows).data[0].x[-1] > -0.02
    alike, few = figure("step", "score"), figure("step", "score")
    alike.add_scatter(x=np.arange(20), y=np.linspace(0, 1, 20))
    few.add_scatter(x=[0, 1, 2], y=[0, 0, 9])
    assert at_the_edge(alike) is alike and at_the_edge(few) is few
