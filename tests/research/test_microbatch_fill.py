import numpy as np
import pytest

from research.microbatch_fill import GROUP_SIZE, GROUPS, lengths_by_model, measure


def test_an_exchange_of_groups_evens_out_what_ranks_have_in_common_with_their_groups():
    # every fourth group, which is the first rank's, has rows of 1,000 tokens, all others of 100
    rows = np.full((GROUPS, GROUP_SIZE, 2), 50)
    rows[::4] = 500
    apart = measure(rows, balanced=False, budget=5_000)
    # 64 rows of 1,000 make 13 microbatches (the last has four), 64 rows of 100 make two
    assert apart.full == apart.in_line == pytest.approx((64_000 + 3 * 6_400) / (19 * 5_000))
    # on one rank, the last microbatch of the long rows takes one of the 192 short ones, and the
    # other 191 make four
    assert apart.bound == pytest.approx((64_000 + 3 * 6_400) / (17 * 5_000))
    assert apart.padding == 0
    assert apart.busiest == pytest.approx(64_000 / 20_800)
    assert apart.busy == pytest.approx(20_800 / 64_000)
    assert measure(rows, balanced=True, budget=5_000).busiest == 1


def test_all_models_have_completed_the_same_problems():
    lengths = lengths_by_model()
    assert {len(rows) for rows in lengths.values()} == {500}
    assert all((rows > 0).all() and rows[:, 1].max() <= 4_096 for rows in lengths.values())
