from dataclasses import replace

from dashboards.pictures.decision import decided
from dashboards.results import Rounds
from dashboards.statistics.sequential import Standing
from tests.dashboards.pictures.test_verdict import sweep_with

FRESH = {(0.0, 0.0): [0.50, 0.52], (0.3, 0.0): [0.60, 0.62], (0.9, 0.0): [0.3, 0.31]}
STANDINGS = (
    Standing("1", 3, 0.05, -0.01, 0.10, "open"),
    Standing("2", 3, -0.2, -0.26, -0.15, "worse"),
    Standing("1", 6, 0.06, 0.02, 0.09, "better"),
)
ROUNDS = Rounds((3, 6, 9), 0.02, "better", STANDINGS)


def test_every_finalist_is_told_by_its_last_look_and_the_price_is_named() -> None:
    assert decided(replace(sweep_with(FRESH), rounds=ROUNDS)) == (
        "On fresh seeds, of at most 9 planned: #2 grpo α 0.9 is worse than the baseline after 3 seeds: -0.200 "
        "(-0.260 to -0.150); #1 grpo α 0.3 is better than the baseline after 6 seeds: +0.060 (+0.020 to +0.090). "
        "That took 6 trials of at most 27, 12 GPU-hours."
    )
    assert "the first look is after 3" in decided(replace(sweep_with(FRESH), rounds=replace(ROUNDS, standings=())))
