import math
from dataclasses import replace

import pandas as pd
import pytest

from dashboards.pictures.judged import comparable, judge_fresh, known_noise
from dashboards.pictures.verdict import confirmed, verdict
from dashboards.queries import Sweep
from tests.dashboards.table import sweep_of


def sweep_with(scores: dict[tuple[float, float], list[float]], **states: str) -> Sweep:
    """Configurations 0, 1, ... of GRPO with (alpha, eta) -> the scores of seeds 0, 1, ...; c1s0="PRUNED" etc."""
    template = sweep_of().trials.iloc[0].to_dict()
    rows = [
        {
            **template,
            **{"trial": f"c{number}s{seed}", "configuration": str(number), "seed": str(seed), "score": score},
            **{"alpha": alpha, "eta": eta, "state": states.get(f"c{number}s{seed}", "COMPLETE")},
            **{"start": pd.Timestamp(10 * number + seed, unit="s", tz="UTC"), "duration_s": 1800.0},
        }
        for number, ((alpha, eta), seeds) in enumerate(scores.items())
        for seed, score in enumerate(seeds)
    ]
    return replace(sweep_of(), trials=pd.DataFrame(rows), gpus_per_trial=4, planned=len(rows))


def test_a_clear_gain_on_matched_seeds_is_evidence() -> None:
    scores = {(0.0, 0.0): [0.50, 0.52, 0.54], (0.3, 0.0): [0.60, 0.62, 0.641], (0.0, 0.5): [0.501, 0.52, 0.54]}
    lines = verdict(sweep_with(scores))
    # differences 0.1, 0.1, 0.101
    assert lines[0].startswith(
        "Best: #1 grpo α 0.3 with eval/accuracy 0.620, +0.100 against the baseline #0 grpo (0.520) on 3 "
        "matched seeds, 90 % interval +0."
    )
    assert lines[0].endswith(": more than seed noise.")
    assert "corrected for having picked the best of 2" in lines[1]
    # 9 trials of 4 GPUs for half an hour
    assert lines[2] == "Cost so far: 18 GPU-hours in 9 trials, 2 GPU-hours a trial in the median."
    assert lines[3].startswith("Next: Confirm it on fresh seeds")
    assert "`sweep confirm demo --finalists 1 --seeds 3` does it: 6 trials, about 12 GPU-hours." in lines[3]
    assert lines[3].endswith("`sweep decide demo` runs in rounds instead, and stops as soon as it is known.")
    assert lines[4].startswith("Pairing by seed removed 100% of the variance")
    assert lines[5] == "9 trials: 9 complete; only those that ran to their end are compared."


def test_a_gain_within_the_noise_is_none_and_says_what_would_be_found() -> None:
    scores = {(0.0, 0.0): [0.50, 0.52, 0.60], (0.3, 0.0): [0.65, 0.55, 0.66], (0.0, 0.5): [0.45, 0.62, 0.5]}
    first, noise, _, step, *_ = verdict(sweep_with(scores))
    assert first.endswith("not shown to be more than seed noise.")
    assert "3 seeds find a true gain of 0." in noise and noise.endswith("8 times in 10.")
    assert "sweep confirm demo" in step


def test_one_seed_is_never_evidence() -> None:
    lines = verdict(sweep_with({(0.0, 0.0): [0.1], (0.3, 0.0): [0.9]}))
    assert lines[0].startswith("Best: #1 grpo α 0.3 with eval/accuracy 0.900, +0.800 against")
    assert "on 1 matched seed: not shown" in lines[0]
    assert lines[1].startswith("They share 1 seed, so nothing tells the difference from chance.")
    assert "--seeds 3` does it: 6 trials, about 12 GPU-hours." in lines[3]


def test_the_baseline_may_win() -> None:
    lines = verdict(sweep_with({(0.0, 0.0): [0.9, 0.8, 0.91], (0.3, 0.0): [0.1, 0.2, 0.15]}))
    assert lines[0].startswith("Best: the baseline #0 grpo itself, with eval/accuracy 0.870; the nearest is #1")
    assert "Keep the baseline" in lines[3]


def test_configurations_with_a_stopped_seed_are_not_compared() -> None:
    scores = {(0.0, 0.0): [0.5, 0.6], (0.3, 0.0): [0.55, 0.65], (0.5, 0.0): [0.99, 0.2]}
    sweep = sweep_with(scores, c2s1="PRUNED")
    assert set(comparable(sweep).configuration) == {"0", "1"}
    lines = verdict(sweep)
    assert lines[0].startswith("Best: #1 grpo α 0.3")
    assert lines[-1].endswith("1 configurations are left out because the scheduler stopped some of their seeds.")


def test_a_search_names_a_candidate_and_failed_seeds_silence_a_configuration() -> None:
    scores = {
        **{(0.0, 0.0): [0.50, 0.52, 0.54], (0.3, 0.0): [0.60, 0.62, 0.641], (0.0, 0.5): [0.501, 0.52, 0.54]},
        (0.5, 0.0): [0.9, 0.9, math.nan],
    }
    sweep = replace(sweep_with(scores, c3s2="FAIL"), adaptive=True)
    lines = verdict(sweep)
    assert lines[0].startswith("Best: #1 grpo α 0.3") and "a candidate" in lines[0]
    assert "fresh" in lines[3] and "sweep confirm demo" in lines[3]
    assert "1 configurations make no claim" in lines[-1] and lines[-1].endswith("luckier ones: #3 grpo α 0.5.")


def test_less_may_be_better() -> None:
    assert verdict(sweep_of("min"))[0].startswith("Best: #3 rpp with eval/accuracy 0.450, -0.100 against")


@pytest.mark.parametrize("score", [math.nan, 0.5])
def test_before_anything_ended(score: float) -> None:
    sweep = sweep_with({(0.0, 0.0): [score]}, c0s0="RUNNING")
    assert verdict(sweep)[0] == "No configuration has run to its end with a score yet."
    assert verdict(replace(sweep, trials=sweep.trials.iloc[:0]))[-1] == "The sweep has no trials yet."


def test_progress_is_told_by_trials_and_not_by_the_parent_alone() -> None:
    sweep = sweep_with({(0.0, 0.0): [0.5, 0.6]})
    assert replace(sweep, status="RUNNING").progress == "finished: all 2 planned trials have ended"
    assert replace(sweep, status="RUNNING", planned=4).progress == "running: 2 of 4 planned trials have ended"
    assert replace(sweep, status="KILLED", planned=4).progress == "stopped: 2 of 4 planned trials have ended"


def test_fresh_seeds_speak_for_themselves() -> None:
    scores = {(0.0, 0.0): [0.50, 0.52, 0.54], (0.3, 0.0): [0.60, 0.62, 0.64]}
    fresh = sweep_with({(0.0, 0.0): [0.52, 0.5, 0.54], (0.3, 0.0): [0.5, 0.52, 0.53]})
    lines = verdict(replace(sweep_with(scores), confirmation=fresh))
    assert lines[2].startswith("On fresh seeds: No configuration scored better than the baseline #0 grpo")
    assert not any("sweep confirm" in line for line in lines)
    better = sweep_with({(0.0, 0.0): [0.50, 0.52, 0.54], (0.3, 0.0): [0.60, 0.62, 0.641]})
    told = next(
        line for line in verdict(replace(better, confirmation=better)) if line.startswith("On fresh seeds")
    )
    assert "more than the noise between seeds" in told
    assert told.endswith(
        "Next: Train with it: `sweep export` writes its configuration."
    )  # not to confirm it again


def test_full_weights_are_judged_by_themselves() -> None:
    adapters = sweep_with({(0.0, 0.0): [0.50, 0.52, 0.54], (0.3, 0.0): [0.60, 0.62, 0.641]})
    step = next(line for line in verdict(replace(adapters, two_stages=True)) if line.startswith("Next: "))
    assert step.endswith(
        "`sweep confirm demo --finalists 1 --seeds 3 --full` does it with full weights: 6 trials."
    )
    fresh = sweep_with({(0.0, 0.0): [0.7, 0.72], (0.3, 0.0): [0.73, 0.76]})
    lines = verdict(replace(adapters, full=fresh))
    told = next(line for line in lines if line.startswith("Found with adapters"))
    assert told.startswith("Found with adapters, confirmed with full weights alone on fresh seeds: #1 grpo α 0.3 ")
    # The noise of the adapters' scores is not borrowed.
    alone, pooled = judge_fresh(fresh, None), judge_fresh(fresh, known_noise(adapters))
    assert alone is not None and pooled is not None and alone.reason != pooled.reason
    assert alone.reason in told
    assert not any("sweep confirm" in line for line in lines)
    begun = replace(adapters, full=replace(fresh, trials=fresh.trials.iloc[:0], status="RUNNING"))
    assert "full weights alone on fresh seeds: running: 0 of 4" in " ".join(verdict(begun))
    assert confirmed(replace(adapters, full=fresh), full=True)[0] == told
    assert len(confirmed(replace(adapters, full=fresh), full=True)) == 2
