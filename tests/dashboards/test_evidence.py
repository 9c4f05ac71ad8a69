import math
from dataclasses import replace

import pandas as pd
import pytest

from dashboards.evidence import collect_comparisons, rule_comparisons
from dashboards.words import REFUSAL_TEXT
from tests.dashboards.pictures.test_tournament import confirmed as tuned_and_confirmed
from tests.dashboards.table import results_of, with_trials


def confirmed(name, task, gains, *others):
    """A sweep whose configuration 1 (AR) gained so much on each fresh seed, and others the same on
    all.
    """
    sweep = replace(results_of(), name=name, model="tiny", task=task)
    rows = []
    for number, more in (
        ("0", [0.0] * len(gains)),
        ("1", gains),
        *((n, [gain] * len(gains)) for n, gain in others),
    ):
        trials = sweep.table[sweep.table.configuration == number].iloc[:1]
        rows += [
            trials.assign(seed=str(9 + i), score=0.5 + 0.01 * i + gain, trial=f"{number}-{i}")
            for i, gain in enumerate(more)
        ]
    return replace(
        sweep, fresh=with_trials(sweep, pd.concat(rows, ignore_index=True), baseline="0")
    )


def test_a_rules_interval_has_the_noise_of_both_stages():
    (ar, lopti, *_) = rule_comparisons(confirmed("one", "easy", [0.10, 0.14, 0.12]))
    assert ar.chosen == "chosen for its score"
    assert (ar.rule, ar.baseline, ar.seeds, ar.left_out) == ("grpo + AR", "grpo", 3, "")
    assert ar.gain == pytest.approx(0.12)
    # Fresh differences vary by 0.02 (two degrees of freedom), those of the search, 0.2 and 0.2, by
    # nothing (one). As unpaired runs, both have the variances 0.0001 and 0.0007 on fresh seeds and
    # 0.005 in the search.
    own = 2 * 0.02**2 / 3
    unpaired = (2 * (0.0001 + 0.0007) + 2 * 0.005) / 3
    error = ((own + unpaired) / 2 / 3) ** 0.5
    # the quantile of three degrees of freedom at 0.05 * 3 / 5
    assert ar.interval[0] == pytest.approx(0.12 - 2.951 * error, rel=1e-3)
    assert lopti.left_out and math.isnan(lopti.gain)


def test_no_rule_is_selected_if_all_ran_on_fresh_seeds():
    sweep = confirmed("one", "easy", [0.10, 0.14, 0.12], ("2", 0.3))
    whole = with_trials(sweep, sweep.table[sweep.table.configuration.isin(["0", "1", "2"])])
    assert {(row.rule, row.chosen) for row in rule_comparisons(whole)} == {
        ("grpo + AR", ""),
        ("grpo + Lopti", ""),
    }


def test_fresh_seeds_do_not_choose_among_finalists_of_a_rule():
    sweep = confirmed("one", "easy", [0.10, 0.14, 0.12], ("2", 0.3))
    assert sweep.fresh is not None
    alike = with_trials(sweep, sweep.table.assign(rule=["grpo"] * 2 + ["AR"] * 4 + ["rpp"] * 4))
    (row, *_) = rule_comparisons(alike)
    # of 0.75 and 0.55 in the search, the first
    assert (row.rule, row.gain) == ("AR", pytest.approx(0.12))


def test_less_is_better_where_the_objective_says_so():
    sweep = confirmed("one", "easy", [0.10, 0.14, 0.12])
    least = replace(sweep.objective, mode="min")
    assert sweep.fresh is not None
    sweep = replace(sweep, objective=least, fresh=replace(sweep.fresh, objective=least))
    (row, *_) = rule_comparisons(sweep)
    assert row.gain == pytest.approx(-0.12) and row.interval[0] < -0.12 < row.interval[1] < 0


def test_of_a_tournament_the_luck_of_tuning_counts():
    sweep = tuned_and_confirmed(gain=0.1)
    (counted,) = [row for row in rule_comparisons(sweep) if not row.left_out]
    (result,) = sweep.tuned_rules.compared
    assert (counted.gain, counted.interval) == (pytest.approx(0.105), result.interval)
    assert counted.chosen == ""  # every rule goes to fresh seeds
    # fresh seeds alone, t(1): 0.073
    assert result.interval is not None and result.interval[0] < 0.07
    few = with_trials(sweep, sweep.table.iloc[:10])
    assert REFUSAL_TEXT["few trials"] in {row.left_out for row in rule_comparisons(few)}


def test_a_setting_counts_once_and_what_is_not_confirmed_not_at_all():
    sweeps = [
        confirmed("a", "easy", [0.10, 0.14, 0.12]),
        confirmed("b", "easy", [0.30, 0.31, 0.35, 0.32]),
        confirmed("c", "hard", [0.01, -0.02, 0.02]),
        confirmed("d", "other", [-0.2, -0.21, -0.19]),
        replace(confirmed("e", "fifth", [0.1, 0.2]), fresh=None),
    ]
    counted, left = collect_comparisons(sweeps)
    assert [(row.sweep, row.task) for row in counted] == [
        ("b", "easy"),
        ("c", "hard"),
        ("d", "other"),
    ]
    why = {(row.sweep, row.rule): row.left_out for row in left}
    assert why["a", "grpo + AR"].startswith("b ")
    assert why["e", ""]
