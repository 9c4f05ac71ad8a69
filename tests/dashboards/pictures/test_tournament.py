import math
import re
from dataclasses import replace

import pandas as pd
import pytest

from dashboards.headline import headline, verdict_sentences
from dashboards.pages.html import render_page
from dashboards.pages.report import chapters_of
from dashboards.pictures.tournament import rule_table, tournament, tournament_line, tuning_curves
from dashboards.statistics.tournament import RuleResult
from dashboards.statistics.verdict import Tested
from dashboards.words import rules
from tests.dashboards.table import ALPHA, ETA, interim, results_of, shown, with_trials

RULES = {"0": "plain", "1": "plain", "2": "AR", "3": "AR", "4": "AR"}  # by the last digit
FRACTIONS = {"2": 0.5, "3": 0.2, "4": 0.9}  # eta, which is all that AR tunes


def tuned():
    """Two rules: plain with eight configurations, AR with nine, of which one failed; each tunes one
    parameter.
    """
    results = results_of()
    first = results.table[results.table.configuration != "4"]
    more = [
        first.assign(
            configuration=f"{n}" + first.configuration,
            trial=f"{n}" + first.trial,
            score=first.score - n / 10,
        )
        for n in (1, 2, 3)
    ]
    trials = pd.concat([results.table, *more], ignore_index=True)
    last = trials.configuration.str[-1]
    trials = trials.assign(
        arm=last.map(RULES), **{"algorithm.advantage": "grpo", ETA: last.map(FRACTIONS).fillna(0.0)}
    )
    trials.loc[trials.arm == "AR", ALPHA] = 0.0
    return with_trials(results, trials, arms=("plain", "AR"), adaptive=True)


def confirmed(gain):
    sweep = tuned()
    chosen = sweep.table[sweep.table.configuration.isin(["1", "2"])]
    scores = [0.5, 0.52, 0.5 + gain, 0.53 + gain]
    trials = chosen.assign(
        seed=["2", "3", "2", "3"], score=scores, trial=["a", "b", "c", "d"], arm=""
    )
    return replace(sweep, fresh=with_trials(sweep, trials, arms=(), baseline="1", adaptive=False))


def test_the_best_so_far_of_every_rule_by_its_own_trials():
    curves = tuning_curves(tuned())
    best_so_far = {
        arm: [round(best, 3) for best in curve.best] for arm, curve in curves.groupby("arm")
    }
    assert best_so_far == {"plain": [0.55, *[0.75] * 7], "AR": [0.55] * 9}
    assert list(curves[curves.arm == "AR"].trial) == [*range(1, 10)]  # the failed one took a place
    # a score that is left of a configuration with a failed seed counts for nothing
    trials = tuned().table
    lucky = trials.configuration.isin(trials[trials.state == "FAIL"].configuration)
    trials.loc[lucky & (trials.state == "COMPLETE"), "score"] = 9.0
    sweep = with_trials(tuned(), trials)
    assert tuning_curves(sweep).best.max() == pytest.approx(0.75)
    assert sweep.tuned_rules.means["AR"].max() == pytest.approx(0.55)
    # nor does one of which a seed was stopped early
    trials.loc[lucky, "state"] = trials.state[lucky].replace("FAIL", "PRUNED")
    sweep = with_trials(tuned(), trials)
    assert tuning_curves(sweep).best.max() == pytest.approx(0.75)
    assert sweep.tuned_rules.means["AR"].max() == pytest.approx(0.55)
    least = tuning_curves(replace(tuned(), objective=replace(tuned().objective, mode="min")))
    best_so_far = [round(best, 3) for best in least[least.arm == "plain"].best]
    assert best_so_far == [best for best in (0.55, 0.45, 0.35, 0.25) for _ in range(2)]
    trials = tuned().table
    trials.loc[trials.state == "COMPLETE", "score"] = 0.5
    for mode in ("min", "max"):  # the first of configurations with equal scores
        objective = replace(tuned().objective, mode=mode)
        equal = tuning_curves(replace(with_trials(tuned(), trials), objective=objective))
        assert list(equal.groupby("arm").label.nunique()) == [1, 1]


def test_a_color_means_one_thing_on_all_pictures():
    sweep = confirmed(gain=1.0)
    rules_of = {"plain": "grpo", "AR": "grpo + Lopti"}
    trials = tuple(replace(trial, rule=rules_of[trial.arm]) for trial in sweep.trials)
    chapters = chapters_of(replace(sweep, trials=trials))
    legends = {
        picture.key: picture.legend for pictures in chapters.values() for picture in pictures
    }
    rules = legends["curves"]
    assert legends["tournament"] == {"plain": rules["grpo"], "AR": rules["grpo + Lopti"]}
    assert not set(legends["finalists"].values()) & set(rules.values())


def test_nothing_is_compared_on_the_seeds_of_the_tuning():
    sweep = tuned()
    assert sweep.compared_with == "1"  # the first rule at its best
    lines = verdict_sentences(sweep)
    assert "2 rules" in lines[0] and "8 to 9 configurations" in lines[0]
    assert "sweep confirm demo" in lines[1]
    assert not any("candidate" in line or "Best:" in line for line in lines)


def test_rules_are_compared_on_fresh_seeds():
    sweep = confirmed(gain=9.0)
    assert all(told in tournament_line(sweep) for told in ("AR beats", "plain", "+9.005"))
    assert "beats" not in tournament_line(confirmed(gain=0.01))
    assert [result.better for result in confirmed(gain=0.01).tuned_rules.compared] == [False]
    assert verdict_sentences(sweep)[0] == tournament_line(sweep)
    judged = sweep.fresh_verdict
    assert isinstance(judged, Tested) and judged.claim == "too few seeds"
    headings, rows = rule_table(sweep)
    table = pd.DataFrame(rows, columns=headings).set_index("rule")
    assert table.loc["AR", "best setting"] == "#2 AR η 0.5"
    assert table["median search score"].to_list() == pytest.approx([0.5, 0.35])
    assert table["fresh seeds"].to_list() == pytest.approx([0.51, 9.515])
    assert table.loc["AR", "gain from tuning"] == pytest.approx(9.515 - 0.35)
    low, high = sweep.tuned_rules.compared[0].interval
    assert low < table.loc["AR", "against plain"] < high
    assert table.loc["AR", "90% interval"] == f"{low:+.3f} to {high:+.3f}"


def test_a_rule_whose_interval_lies_below_zero_is_called_worse():
    sweep = confirmed(gain=-9.0)
    (result,) = sweep.tuned_rules.compared
    assert result.worse and result.interval[1] < 0
    line = tournament_line(sweep)
    assert "AR is worse: -8.995" in line and "plain" in line
    assert "nearest" not in line
    assert not confirmed(gain=0.01).tuned_rules.compared[0].worse


def test_rules_after_an_earlier_confirmation_have_wider_intervals():
    once = confirmed(gain=9.0)
    fresh = replace(once.fresh, earlier_confirmations=2)
    (alone,), (again,) = once.tuned_rules.compared, replace(once, fresh=fresh).tuned_rules.compared
    assert again.found.p == pytest.approx(4 * alone.found.p)
    assert again.interval[0] < alone.interval[0] and again.found.coverage == 0.975
    assert "97.5% interval" in tournament_line(replace(once, fresh=fresh))


def test_rules_that_are_better_open_and_worse_are_each_told():
    better, unclear, worse = (
        RuleResult(found=interim(rule, 5, gain, interval, "undecided", baseline="plain"))
        for rule, gain, interval in (
            ("A", 0.3, (0.1, 0.5)),
            ("B", 0.01, (-0.1, 0.12)),
            ("C", -0.2, (-0.3, -0.1)),
        )
    )
    assert _told([better, unclear, worse]) == ["A beats", "no other is shown to beat", "C is worse"]
    assert _told([unclear, worse]) == ["none is shown to beat", "C is worse"]
    assert _told([better, worse]) == ["A beats", "no other beats", "C is worse"]
    assert _told([unclear]) == ["none is shown to beat"]
    farther = replace(unclear, found=replace(unclear.found, configuration="D", gain=-0.02))
    for undecided in ([unclear, farther], [farther, unclear]):  # in any order
        assert "the nearest is B: " in rules(undecided, "plain")


def test_after_fresh_seeds_rules_name_what_to_export():
    chosen = []
    for gain in (9.0, 0.01, -9.0):
        sweep = confirmed(gain)
        fresh = replace(sweep.fresh, planned=4)
        front = headline(replace(sweep, fresh=fresh))
        chosen.append((front.configuration, front.confirmed))
        command = "`sweep export demo --baseline`" if gain == 0.01 else "`sweep export demo`"
        assert command in front.step
        assert not headline(sweep).step  # fresh seeds are still running
        judged = replace(sweep, fresh=fresh, name="")  # a table, which nothing exports
        assert not headline(judged).step
    assert chosen == [("2", True), (None, False), ("1", False)]


def _told(results):
    """The beginnings of the parts of a headline."""
    text = rules(results, "plain").split("fresh seeds: ")[1].split(". Intervals")[0]
    return [re.match(r".*?(beats|shown to beat|is worse)", part)[0] for part in text.split("; ")]


def test_a_failed_fresh_seed_counts_and_is_said():
    sweep = confirmed(gain=9.0)
    lost = [replace(trial, state="FAIL", score=math.nan) for trial in sweep.fresh.trials[3:]]
    fresh = replace(sweep.fresh, trials=(*sweep.fresh.trials[:3], *lost))
    sweep = replace(sweep, fresh=fresh)
    (result,) = sweep.tuned_rules.compared
    assert result.difference == pytest.approx(9.0)  # on the seed that ended
    assert tournament_line(sweep).endswith("AR (1).")


def test_a_baseline_that_failed_on_every_fresh_seed_is_told():
    sweep = confirmed(gain=9.0)
    lost = [replace(trial, state="FAIL", score=math.nan) for trial in sweep.fresh.trials[:2]]
    fresh = replace(sweep.fresh, trials=(*lost, *sweep.fresh.trials[2:]), planned=4)
    line = tournament_line(replace(sweep, fresh=fresh))
    assert "plain has no score on fresh seeds, so nothing is compared" in line


def test_the_picture_has_lines_differences_and_a_table():
    picture = tournament(confirmed(gain=0.01))
    assert picture is not None and len(picture.figures) == 2
    assert [trace.name for trace in picture.figures[0].data] == ["AR", "plain"]
    few = with_trials(confirmed(gain=0.01), confirmed(gain=0.01).table.iloc[:14])
    assert [result.refusal for result in few.tuned_rules.compared] == ["few trials"]
    assert "AR +0.015" in tournament_line(few)
    assert "Intervals" not in tournament_line(few) and len(shown(tournament(few)).figures) == 1
    page = render_page("demo", "", ["Undecided."], {"Verdict": [picture]}, ([], []))
    assert "<th" in page and "best setting" in page and "#2 AR η 0.5" in page
    assert tournament(results_of()) is None
