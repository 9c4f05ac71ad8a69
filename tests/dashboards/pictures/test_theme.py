import math
from types import SimpleNamespace

import plotly.graph_objects as go

from dashboards.pictures.theme import category_axis, figure, hover, label_rows
from dashboards.words import number, signed


def test_numbers_are_short():
    shown = " ".join(number(value) for value in (0.79, 1e-6, 3.0, 123456.0, math.nan, 12.34))
    assert shown == "0.790 1.00e-06 3 1.23e+05 none 12.3"
    assert signed(0.04) == "+0.040" and signed(-1.0) == "-1.000"


def test_text_of_others_is_escaped():
    row = SimpleNamespace(trial="1-s0", label="#1 grpo α 0.3", seed=0)
    assert hover(row, "diverged <b>", "") == (
        "trial 1-s0<br>#1 grpo α 0.3, seed 0<br>diverged &lt;b&gt;"
    )
    drawing = figure()
    label_rows(drawing, ["a & b", "c"])
    assert [note.text for note in drawing.layout.annotations] == ["a &amp; b", "c"]
    assert list(drawing.layout.yaxis.categoryarray) == ["a & b", "c"]


def test_long_words_get_more_lines_and_more_height():
    drawing, plain, of_plotly = figure(), figure(), go.Figure()
    category_axis(drawing, ["a", "token/level_mean"])
    category_axis(plain, ["a", "b"])
    category_axis(of_plotly, ["a", "token/level_mean"])
    assert list(drawing.layout.xaxis.ticktext) == ["a", "token/<br>level_<br>mean"]
    assert plain.layout.height == figure().layout.height
    added = drawing.layout.height - plain.layout.height
    assert added > 0 and drawing.layout.margin.b - plain.layout.margin.b == added
    assert of_plotly.layout.height == drawing.layout.height  # without a height of its own
