import pandas as pd
import pytest

from benchmarks.diagnosis_picture import draw, mean_change, right_way
from tests.trainer.paper.test_tables import UPDATES

TOKENS = pd.DataFrame(
    {
        "probability": [0.1, 0.2, 0.2, 0.8, 0.9],
        "band": ["0.00-0.25"] * 3 + ["0.75-1.00"] * 2,
        "advantage": [1.0, -1.0, 0.0, 1.0, -2.0],
        "gradient_norm": [0.9, 0.8, 0.8, 0.2, 0.1],
        "parameter_gradient_norm": [3.0, None, None, 1.0, None],
        # The fourth moves less than float32 can tell.
        **{f"change: {name}": [0.02, 0.04, 0.03, 1e-6, -0.01] for name in UPDATES},
    }
)


def test_changes_and_directions_by_hand():
    assert mean_change(TOKENS, "all tokens").tolist()[::3] == pytest.approx([0.03, 0.0050005])
    # Of the first band one of two that have an advantage; of the last the only one that moved.
    assert right_way(TOKENS, "all tokens").tolist()[::3] == [0.5, 1.0]
    assert right_way(TOKENS, "all tokens").isna().tolist() == [False, True, True, False]


def test_three_panels_per_folder():
    drawing = draw({"puzzles": TOKENS, "sums": TOKENS})
    assert len(drawing.data) == 2 * (2 + 3 + 3)
    assert sum(trace.showlegend for trace in drawing.data) == 2 + 3 + 2
