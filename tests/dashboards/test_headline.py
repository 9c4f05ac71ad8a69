import math
from dataclasses import replace

import pandas as pd
import pytest

from dashboards import words
from dashboards.headline import confirmation_sentences, headline, verdict_sentences
from dashboards.json_fields import verdict_fields
from dashboards.next_step import FIX_FAILURES, NO_GAIN_LEFT, next_step
from dashboards.rounds import Rounds
from dashboards.statistics.verdict import Tested
from dashboards.trial import Curve
from tests.dashboards.table import ALPHA, ETA, interim, results_of, with_trials


def sweep_with(scores, **states):
    """Configurations 0, 1, ... of GRPO with (alpha, eta) -> the scores of seeds 0, 1, ...;
    c1s0="PRUNED" etc.
    """
    template = results_of().table.iloc[0].to_dict()
    rows = [
        {
            **template,
            **{
                "trial": f"c{number}s{seed}",
                "configuration": str(number),
                "seed": str(seed),
                "score": score,
            },
            **{ALPHA: alpha, ETA: eta, "state": states.get(f"c{number}s{seed}", "COMPLETE")},
            "hours": 2.0,
        }
        for number, ((alpha, eta), seeds) in enumerate(scores.items())
        for seed, score in enumerate(seeds)
    ]
    return with_trials(results_of(), pd.DataFrame(rows), device="GPU", devices=4, planned=len(rows))


def test_a_clear_gain_on_matched_seeds_is_evidence():
    scores = {
        (0.0, 0.0): [0.50, 0.52, 0.54],
        (0.3, 0.0): [0.60, 0.62, 0.641],
        (0.0, 0.5): [0.501, 0.52, 0.54],
    }
    lines = verdict_sentences(sweep_with(scores))
    # differences 0.1, 0.1, 0.101
    assert sweep_with(scores).verdict.claim == "evidence"
    assert "#0 grpo" in lines[0] and "#1 grpo α 0.3: +0.100 (90% interval +0." in lines[0]
    assert "3 seeds" in lines[0]
    assert "`sweep confirm demo --finalists 1 --seeds 5`" in lines[1]
    assert "10 trials, about 20 GPU-hours" in lines[1] and "--rounds" in lines[1]
    assert "2 comparisons" in lines[2] and "63%" in lines[2]
    # 9 trials of 4 GPUs for half an hour
    assert all(text in lines[3] for text in ("18 GPU-hours", "2 GPU-hours"))
    assert "9 complete" in lines[4]


def test_a_sweep_in_which_all_training_harmed_says_so_in_the_headline():
    sweep = sweep_with({(0.0, 0.0): [0.10, 0.12], (0.3, 0.0): [0.09, 0.11]})
    harmed = [
        replace(trial, curves={"eval/accuracy": Curve((0, 20), (0.5, trial.score))})
        for trial in sweep.trials
    ]
    sentence = headline(replace(sweep, trials=tuple(harmed))).sentence
    assert "-0.390 to -0.400" in sentence
    helped = replace(harmed[0], curves={"eval/accuracy": Curve((0, 20), (0.0, 0.1))})
    mixed = (helped, helped, *harmed[2:])
    assert "start" not in headline(replace(sweep, trials=mixed)).sentence


def test_a_gain_within_the_noise_is_none_and_says_what_would_be_found():
    scores = {
        (0.0, 0.0): [0.50, 0.52, 0.60],
        (0.3, 0.0): [0.65, 0.55, 0.66],
        (0.0, 0.5): [0.45, 0.62, 0.5],
    }
    first, step, noise, *_ = verdict_sentences(sweep_with(scores))
    assert "#0 grpo" in first and "#1 grpo α 0.3: +0.0" in first
    assert "3 seeds" in noise and "80% power" in noise
    assert "sweep confirm demo" in step


def test_a_gain_that_luck_explains_takes_no_number_of_seeds():
    sweep = sweep_with(
        {(0.0, 0.0): [0.5, 0.7, 0.6], (0.3, 0.0): [0.64, 0.6, 0.6], (0.0, 0.5): [0.4, 0.6, 0.5]}
    )
    judged = sweep.verdict
    assert isinstance(judged, Tested)
    assert judged.improves
    for left in (-0.002, 1e-16):  # rounding leaves the second
        sweep.__dict__["verdict"] = replace(judged, shrunken=left, confirmation_seeds=None)
        assert next_step(sweep).text == f"Next: {NO_GAIN_LEFT}"


def test_one_seed_is_never_evidence():
    lines = verdict_sentences(sweep_with({(0.0, 0.0): [0.1], (0.3, 0.0): [0.9]}))
    assert "#1 grpo α 0.3: +0.800 (1 seed)" in lines[0]
    assert "--seeds 5`" in lines[1] and "10 trials, about 20 GPU-hours" in lines[1]
    assert "1 shared seed" in lines[2]


def test_configurations_with_a_stopped_seed_are_not_compared():
    scores = {(0.0, 0.0): [0.5, 0.6], (0.3, 0.0): [0.55, 0.65], (0.5, 0.0): [0.99, 0.2]}
    sweep = sweep_with(scores, c2s1="PRUNED")
    assert set(sweep.comparable.configuration) == {"0", "1"}
    lines = verdict_sentences(sweep)
    assert "Best candidate #1 grpo α 0.3" in lines[0]
    assert lines[-1].endswith(
        "Excluded, because the scheduler stopped some of their seeds: 1 configuration."
    )


def test_a_search_names_a_candidate_and_failed_seeds_count_as_worst():
    scores = {
        **{
            (0.0, 0.0): [0.50, 0.52, 0.54],
            (0.3, 0.0): [0.60, 0.62, 0.641],
            (0.0, 0.5): [0.501, 0.52, 0.54],
        },
        (0.5, 0.0): [0.51, 0.52, math.nan],
    }
    sweep = replace(sweep_with(scores, c3s2="FAIL"), adaptive=True)
    lines = verdict_sentences(sweep)
    assert sweep.verdict.claim == "candidate"
    assert "#0 grpo" in lines[0] and "#1 grpo α 0.3: +0.1" in lines[0]
    assert "fresh" in lines[1] and "sweep confirm demo" in lines[1]
    assert dict(sweep.verdict.failed) == {"3": 1} and "#3 grpo α 0.5 (1)" in lines[2]


@pytest.mark.parametrize("score", [math.nan, 0.5])
def test_before_anything_ended(score):
    sweep = sweep_with({(0.0, 0.0): [score]}, c0s0="RUNNING")
    assert verdict_sentences(sweep)[0] == words.NOTHING_ENDED
    assert verdict_sentences(with_trials(sweep, sweep.table.iloc[:0]))[-1] == words.NO_TRIALS


def test_progress_is_told_by_trials_and_not_by_the_parent_alone():
    sweep = sweep_with({(0.0, 0.0): [0.5, 0.6]})
    assert replace(sweep, running=True).progress.startswith("finished: all 2 ")
    assert replace(sweep, running=True, planned=4).progress.startswith("running: 2 of 4 ")
    assert replace(sweep, planned=4).progress.startswith("stopped: 2 of 4 ")


def test_fresh_seeds_decide():
    gain = {(0.0, 0.0): [0.50, 0.52, 0.54], (0.3, 0.0): [0.60, 0.62, 0.641]}
    loss = {(0.0, 0.0): [0.52, 0.53, 0.54], (0.3, 0.0): [0.5, 0.512, 0.52]}
    search = sweep_with(gain)
    lucky = sweep_with(loss)
    cases = [
        # fresh seeds, the difference, whether a gain is confirmed, what they chose
        (lucky, "-0.0", False, "0"),
        (search, "+0.100 (90% interval +0.", True, "1"),
    ]
    for fresh, difference, gained, chosen in cases:
        sweep = replace(search, fresh=fresh)
        answer = headline(sweep)
        lines = verdict_sentences(sweep)
        assert lines[0] == answer.sentence and difference in answer.sentence
        assert (answer.confirmed, answer.configuration) == (gained, chosen)
        assert "`sweep export demo`" in lines[1] and not any(
            "sweep confirm" in line for line in lines
        )
        # The search's own best is told once, below, as what it is.
        assert sum("Evidence of an" in line for line in lines) == 1 and "biased upward" in lines[-3]
        assert "24 GPU-hours (search and fresh seeds)" in lines[-2]
        assert lines[0].count("#1 grpo α 0.3") == 1 and not any(
            "#1 grpo α 0.3" in line for line in lines[1:]
        )
    assert not headline(search).confirmed and headline(search).configuration is None


def test_worse_configurations_are_called_worse_on_all_kinds_of_seeds():
    base = [0.50, 0.52, 0.54]
    lost = {(0.0, 0.0): base, (0.3, 0.0): [0.40, 0.42, 0.441]}
    more_lost = lost | {(0.0, 0.5): [0.30, 0.32, 0.341]}
    mixed = lost | {(0.0, 0.5): [0.50, 0.53, 0.54]}
    # on the search's own seeds
    assert "Nothing beats" in headline(sweep_with(lost)).sentence
    assert "#1 grpo α 0.3 is worse: -0.1" in headline(sweep_with(lost)).sentence
    assert words.OTHERS_WORSE in headline(sweep_with(more_lost)).sentence
    assert "worse" not in headline(sweep_with(mixed)).sentence
    # on fresh seeds the loser is named below the headline, which names the best
    lines = confirmation_sentences(replace(sweep_with(mixed), fresh=sweep_with(mixed)))
    assert any("#1 grpo α 0.3 -0.1" in line for line in lines)
    # and in rounds
    results = tuple(interim(n, 5, -0.2, (-0.26, -0.15), "worse") for n in ("1", "2"))
    rounds = Rounds((5, 10), 0.02, "not better", results)
    search = sweep_with(more_lost)
    told = headline(replace(search, fresh=replace(search, rounds=rounds))).sentence
    assert "every finalist is worse" in told
    rounds = replace(rounds, results=(results[0], replace(results[1], outcome="not better")))
    told = headline(replace(search, fresh=replace(search, rounds=rounds))).sentence
    assert "every finalist improves by less than 0.02" in told


def test_the_finalist_with_the_largest_gain_is_named_where_less_is_better():
    search = results_of("min")
    gains = [
        interim("1", 3, 0.02, (0.01, 0.03), "better"),
        interim("2", 3, 0.20, (0.10, 0.30), "better"),
    ]
    rounds = Rounds((3,), 0.01, "better", tuple(gains))
    answer = headline(replace(search, fresh=replace(search, rounds=rounds)))
    assert answer.configuration == "2" and answer.confirmed
    assert "#2 grpo η 0.5 beats" in answer.sentence


def test_how_seeds_are_treated_is_said_and_recorded():
    sweep = on_fresh_seeds([0.5, 0.52, 0.51], [0.6, 0.62, 0.61])
    declared = replace(sweep, fresh=replace(sweep.fresh, declared_blocks=True))
    said = [line for line in verdict_sentences(declared) if "treated as blocks" in line]
    assert len(said) == 1 and "declares" in said[0]
    assert verdict_fields(declared, declared.fresh_verdict)["blocks"]["how"] == "declared"
    effects = [0.0, 0.1, 0.2, 0.3]
    search = sweep_with(
        {
            (0.1 * number, 0.0): [effect + 0.01 * ((number * place) % 3) for place, effect in rows]
            for number, rows in enumerate([list(enumerate(effects))] * 5)
        }
    )
    learned = replace(search, adaptive=True, fresh=sweep.fresh)
    assert any("correlation of 1.00" in line for line in verdict_sentences(learned))
    assert verdict_fields(learned, learned.fresh_verdict)["blocks"]["known"] is True


def test_trials_are_counted_apart_in_search_and_on_fresh_seeds():
    search = on_fresh_seeds([0.5, 0.52, 0.51], [0.6, 0.62, 0.61])
    counted = verdict_sentences(search)[-1]
    assert counted.startswith("Search: 4 trials: 4 complete")
    assert counted.endswith("Fresh seeds: 6 trials.")
    assert "fresh" not in verdict_sentences(replace(search, fresh=None))[-1]


@pytest.mark.parametrize("outcome", ["open", "undecided"])
def test_rounds_without_a_spread_ask_whether_the_seed_arrives(outcome):
    flat = (interim("1", 5, 0.1, None, "undecided"),)
    search = results_of()
    rounds = Rounds((5, 10), 0.02, outcome, flat)
    step = headline(replace(search, fresh=replace(search, rounds=rounds))).step
    assert "seed reach the program" in step and "--again" not in step


def on_fresh_seeds(baseline, finalist, rounds=None):
    """A sweep whose baseline and best have these scores on fresh seeds; None where they failed."""
    rows = {(0.0, 0.0): baseline, (0.3, 0.0): finalist}
    lost = {
        f"c{number}s{seed}": "FAIL"
        for number, row in enumerate(rows.values())
        for seed, score in enumerate(row)
        if score is None
    }
    scores = {key: [math.nan if y is None else y for y in row] for key, row in rows.items()}
    fresh = replace(sweep_with(scores, **lost), baseline="0", adaptive=False, rounds=rounds)
    search = sweep_with({(0.0, 0.0): [0.50, 0.52], (0.3, 0.0): [0.60, 0.62]})
    return replace(search, adaptive=True, fresh=fresh)


def test_a_mean_driven_by_few_seeds_is_reported_in_both_confirmations():
    lucky = [0.5, 0.5, 0.5, 0.5, 1.0]
    for rounds in (
        None,
        Rounds((5,), 0.01, "undecided", (interim("1", 5, 0.1, (-1, 1), "undecided"),)),
    ):
        (line,) = [
            line
            for line in verdict_sentences(on_fresh_seeds([0.5, 0.5, 0.5, 0.5, 0.5], lucky, rounds))
            if "median difference" in line
        ]
        assert "+0.000" in line


def test_failed_fresh_seeds_are_told_after_rounds_too():
    result = interim("1", 3, 0.05, (-0.01, 0.10), "undecided")
    sweep = on_fresh_seeds(
        [0.5, None, 0.5], [0.6, 0.61, None], Rounds((3,), 0.01, "open", (result,))
    )
    assert any("#0 grpo (1), #1 (1)." in line for line in verdict_sentences(sweep))


def test_a_configuration_that_failed_on_every_fresh_seed_is_not_forgotten():
    lost = headline(on_fresh_seeds([0.5, 0.52, 0.54], [None, None, None]))
    assert "#0 grpo" in lost.sentence and not lost.confirmed
    lost = headline(on_fresh_seeds([None, None, None], [0.5, 0.52, 0.54]))
    assert lost.configuration is None and not lost.confirmed
    assert FIX_FAILURES in lost.step


def test_every_finalist_is_told_by_its_last_look_and_the_price_is_named():
    scores = {(0.0, 0.0): [0.50, 0.52], (0.3, 0.0): [0.60, 0.62], (0.9, 0.0): [0.3, 0.31]}
    analyses = (
        interim("1", 3, 0.05, (-0.01, 0.10), "undecided"),
        interim("2", 3, -0.2, (-0.26, -0.15), "worse"),
        interim("1", 6, 0.06, (0.02, 0.09), "better"),
    )
    search = sweep_with(scores)
    rounds = Rounds((3, 6, 9), 0.02, "better", analyses)
    lines = verdict_sentences(replace(search, fresh=replace(search, rounds=rounds)))
    (line,) = [line for line in lines if "-0.200 (-0.260 to -0.150)" in line]
    for fact in ("#2 grpo α 0.9", "3 seeds", "+0.060 (+0.020 to +0.090)", "6 seeds"):
        assert fact in line
    assert "6 of at most 27 trials" in line and "12 GPU-hours" in line and "39%" in line
    unseen = replace(search, fresh=replace(search, rounds=replace(rounds, results=())))
    assert any(
        "the first interim analysis is after 3" in line for line in verdict_sentences(unseen)
    )
