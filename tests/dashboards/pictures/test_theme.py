import math
from types import SimpleNamespace

from dashboards.pictures.theme import figure, hover, label_rows
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
