import csv
import math

import pytest
import torch

from trainer.paper.diagnose import HIGHEST, LOWEST, Diagnosis, Update
from trainer.paper.tables import MAX_ROWS, summary, write_tables

UPDATES = ["all tokens", LOWEST, HIGHEST, "AR 0.3", "Lopti 0.5, low pass", "Lopti 0.5, then high"]


def diagnosis(probabilities: list[float], advantages: list[float], change: float = 0.02) -> Diagnosis:
    """Every update makes all tokens more probable by ``change``; gradients are as long as they may be."""
    before = torch.tensor(probabilities)
    return Diagnosis(
        vocabulary=2,
        after_steps=1,
        logprobs=before.log(),
        bands=(before * 4).long(),
        advantages=torch.tensor(advantages),
        gradient_norms=(1 - before) * math.sqrt(2),
        parameter_norms=torch.where(before > 0.5, math.nan, 1 - before),
        updates=[Update(name, (before + change).log()) for name in UPDATES],
    )


@pytest.fixture
def found() -> Diagnosis:
    return diagnosis([0.125, 0.2, 0.3, 0.6, 0.75, 0.9], [1.0, 2.0, -1.0, 1.0, -1.0, 2.0])


def test_the_summary_by_hand(found):
    shown = summary(found)
    assert shown[0] == "tokens:      6 in one batch, after 1 steps"
    assert "correlation: 1.0000" in shown[1]
    assert "(all parameters, 3 tokens)" in shown[2]
    assert shown[3].endswith("is 1.4142 to 1.4142; proven 1.4142 to 1.4142")
    # |A| x (1 - pi): 0.875 and 1.6 below 0.25, 0.25 and 0.2 from 0.75 on, of 4.025 in all.
    assert "61.5% of |A| x norm is of the 33.3% of the tokens below 0.25, 11.2% of the 33.3% above" in shown[4]
    assert shown[5] == (
        "all tokens            mean change 2.00e-02, moved 100.0%; of these, A > 0 that rose 100.0%, "
        "A < 0 that fell 0.0%"
    )
    assert len(shown) == 5 + len(UPDATES)


def test_tables_hold_the_change_of_every_token_and_leave_unmeasured_norms_out(found, tmp_path):
    write_tables(found, tmp_path)
    lengths = {path.name: len(list(csv.DictReader(path.open()))) for path in tmp_path.glob("*.csv")}
    assert lengths == {"bands.csv": 4 * len(UPDATES), "updates.csv": len(UPDATES), "tokens.csv": 6}
    rows = list(csv.DictReader((tmp_path / "tokens.csv").open()))
    assert [float(row["probability"]) for row in rows] == pytest.approx([0.125, 0.2, 0.3, 0.6, 0.75, 0.9])
    assert [row["band"] for row in rows][:3] == ["0.00-0.25", "0.00-0.25", "0.25-0.50"]
    assert [float(row["change: AR 0.3"]) for row in rows] == pytest.approx([0.02] * 6, rel=1e-4)
    assert [row["parameter_gradient_norm"] == "" for row in rows] == [False] * 3 + [True] * 3


def test_a_large_batch_is_told_by_every_nth_token(tmp_path):
    count = MAX_ROWS + 1
    spread = torch.linspace(0.1, 0.9, count).tolist()
    write_tables(diagnosis(spread, [1.0] * count), tmp_path)
    rows = list(csv.DictReader((tmp_path / "tokens.csv").open()))
    assert len(rows) == MAX_ROWS // 2 + 1
    assert (float(rows[0]["probability"]), float(rows[-1]["probability"])) == pytest.approx((0.1, 0.9))
