"""The sentences at the top of a report: what won, by how much, whether that is more than noise, what to run."""

import math
from typing import Any

import pandas as pd

from dashboards.pictures.confirmation import finalists, full_finalists
from dashboards.pictures.decision import decided
from dashboards.pictures.judged import (
    changed_from_baseline,
    comparable,
    judge,
    judge_fresh,
    known_noise,
    seed_scores,
)
from dashboards.pictures.precision import limits
from dashboards.pictures.theme import number, rows, signed
from dashboards.queries import Sweep
from dashboards.statistics.seed_noise import Noise
from dashboards.statistics.verdict import Verdict
from trainer.config.variants import short_names, shown

MAX_NAMED = 4  # configurations listed in a sentence
SEEDS_TO_TELL = 3  # asked for where the seeds of a sweep tell nothing
_WORDS = {
    "COMPLETE": "complete",
    "PRUNED": "stopped early",
    "FAIL": "failed",
    "RUNNING": "running",
    "KILLED": "interrupted",
}


def verdict(sweep: Sweep) -> list[str]:
    """The winner first, then the noise, the cost, what to run next, and how many trials that rests on."""
    judged = comparable(sweep)
    if judged.empty:
        return ["No configuration has run to its end with a score yet.", *_cost(sweep), _counts(sweep)]
    found = judge(sweep)
    if found is None:
        best = _best(judged, sweep.objective.mode)
        first = (
            f"Best: {best.label} with {sweep.objective.metric} {number(best.average)}{_seeds(best.count)}; "
            f"{_no_baseline(sweep)} to compare it with."
        )
        noise, step = "", "Next: run the baseline on the same seeds."
    else:
        first, noise, step = _finding(sweep, judged, found), _noise(found), _next_step(sweep, found)
    rounds = "" if sweep.decision is None else decided(sweep.decision)
    lines = [
        first,
        _apart(sweep, found),
        noise,
        rounds,
        _confirmed(sweep),
        _confirmed_in_full(sweep),
        *_cost(sweep),
        step,
        limits(sweep),
        _counts(sweep),
    ]
    return [line for line in lines if line]


def _finding(sweep: Sweep, judged: pd.DataFrame, found: Verdict) -> str:
    means = judged.groupby("label").score.mean()
    metric, mean = sweep.objective.metric, number(means[found.winner])
    if len(means) == 1:
        return f"Only the baseline {found.baseline} has a score: {metric} {mean}."
    difference = f"{signed(found.difference)}{{}}{_matched(found.seeds)}"
    if found.interval is not None:
        difference += f", 90 % interval {signed(found.interval[0])} to {signed(found.interval[1])}"
    if found.winner == found.baseline:
        return (
            f"Best: the baseline {found.baseline} itself, with {metric} {mean}; the nearest is {found.best} "
            f"({difference.format('')})."
        )
    judgement = "more than seed noise" if found.evidence else "not shown to be more than seed noise"
    if found.candidate and found.failing:
        judgement = "a candidate, because so many seeds failed that the lucky ones are left"
    elif found.candidate and not found.evidence:
        judgement = "a candidate, because the search itself followed these seeds; only fresh ones give evidence"
    against = f" against the baseline {found.baseline} ({number(means[found.baseline])})"
    return f"Best: {found.best} with {metric} {mean}, {difference.format(against)}: {judgement}."


def _no_baseline(sweep: Sweep) -> str:
    if sweep.baseline is None:
        return "no baseline is listed, and no plain configuration (alpha 0, eta 0) ran to its end"
    return f"the baseline #{sweep.baseline} did not run to its end"


def _apart(sweep: Sweep, found: Verdict | None) -> str:
    """What else than one thing tells the best from the baseline: the gain is that of all of it together."""
    if found is None or found.winner == found.baseline:
        return ""
    changed = changed_from_baseline(sweep, found.best)
    if len(changed) < 2:
        return ""
    called = short_names(sweep.varied)
    said = ", ".join(f"{called[name]} {shown(own)} (not {shown(base)})" for name, (own, base) in changed.items())
    return f"It differs from the baseline in {said}: the gain is that of all of these together."


def _noise(found: Verdict) -> str:
    """How the judgement was made, and what difference these seeds could have shown."""
    if found.p_value is None or found.deviation is None or found.minimum_detectable_effect is None:
        if found.seeds > 1 or found.best == found.baseline:
            return found.reason
        return f"{found.reason} The smallest difference that could be found is unknown without a second seed."
    tested = f"One-sided p = {max(found.p_value, 1e-4):.2g}, corrected for having picked the best of "
    if found.luck:
        tested = (
            f"Where it is the unluckiest seeds that fail, {number(found.luck, 2)} of the gain may be the luck of "
            f"having kept them all, and is left out of its lower bound. {tested}"
        )
    if found.by_problem:
        tested = f"Seeds differ by no more than evaluation does by itself, whose noise the problems tell. {tested}"
    return (
        f"{tested}{found.comparisons}. Scores of one configuration differ between seeds by a standard deviation "
        f"of {number(found.deviation, 2)}; {found.seeds} seeds find a true gain of "
        f"{number(found.minimum_detectable_effect, 2)} 8 times in 10."
    )


def confirmed(sweep: Sweep, full: bool = False) -> list[str]:
    """What a confirmation found, for the end of its command: the verdict, then the scores on the sealed test.

    Args:
        sweep: that was confirmed.
        full: tell of the confirmation with full weights.
    """
    picture = full_finalists(sweep) if full else finalists(sweep)
    lines = [_confirmed_in_full(sweep) if full else _confirmed(sweep), picture.sentence if picture else ""]
    return [line for line in lines if line]


def _confirmed(sweep: Sweep) -> str:
    """What the finalists did on fresh seeds, where they were run: free of the choice of the best of many."""
    if sweep.confirmation is None:
        return ""
    told = _fresh_verdict(sweep.confirmation, known_noise(sweep))
    return f"On fresh seeds: {told}" if told else f"Confirmation on fresh seeds: {sweep.confirmation.progress}."


def _confirmed_in_full(sweep: Sweep) -> str:
    """The same with full weights; how adapters scored, and how much they vary, says nothing of these."""
    if sweep.full is None:
        return ""
    told = _fresh_verdict(sweep.full, None) or f"{sweep.full.progress}."
    return f"Found with adapters, confirmed with full weights alone on fresh seeds: {told}"


def _fresh_verdict(fresh: Sweep, known: Noise | None) -> str:
    """Finding, reason and next step on fresh seeds; empty before there is anything to compare."""
    found = judge_fresh(fresh, known)
    if found is None or (found.best == found.baseline and not found.silent):
        return ""
    step = "Train with it: `sweep export` writes its configuration." if found.evidence else found.next_step
    return f"{found.finding} {found.reason} Next: {step}"


def _cost(sweep: Sweep) -> list[str]:
    hours = sweep.device_hours().dropna()
    if hours.empty:
        return []
    return [
        f"Cost so far: {_hours(hours.sum(), sweep.device)} in {len(hours)} trials, "
        f"{_hours(hours.median(), sweep.device)} a trial in the median."
    ]


def _next_step(sweep: Sweep, found: Verdict) -> str:
    seeds, configurations = found.confirmation_seeds, 2
    decided_already = sweep.decision is not None and sweep.decision.outcome != "open"
    if sweep.confirmation is not None or sweep.full is not None or decided_already:
        return ""  # what fresh seeds said stands above; the search's own numbers say no more
    if found.best == found.baseline or (found.seeds >= 2 and seeds is None and not found.candidate):
        return f"Next: {found.next_step}"
    if found.winner == found.baseline and found.interval is not None:
        return f"Next: {found.next_step}"
    step = found.next_step
    if found.candidate:
        seeds = max(SEEDS_TO_TELL, seeds or 0)
    elif seeds is None:
        seeds = SEEDS_TO_TELL
        step = "Run the best configuration and the baseline on fresh seeds."
    command = f"sweep confirm {sweep.name} --finalists 1 --seeds {seeds}"
    trials = configurations * seeds
    if sweep.two_stages:
        return f"Next: {step} `{command} --full` does it with full weights: {trials} trials."
    price = sweep.device_hours()[sweep.trials.state == "COMPLETE"].median()
    cost = "" if math.isnan(price) else f", about {_hours(price * trials, sweep.device)}"
    rounds = f" `sweep decide {sweep.name}` runs in rounds instead, and stops as soon as it is known."
    return f"Next: {step} `{command}` does it: {trials} trials{cost}.{rounds}"


def _counts(sweep: Sweep) -> str:
    if sweep.trials.empty:
        return "The sweep has no trials yet."
    states = sweep.trials.state.value_counts()
    counts = ", ".join(f"{count} {_WORDS.get(str(state), str(state))}" for state, count in states.items())
    silent = [name for name, row in seed_scores(sweep).items() if any(map(math.isnan, row.values()))]
    left_out = sweep.complete().configuration.nunique() - comparable(sweep).configuration.nunique()
    text = f"{len(sweep.trials)} trials: {counts}; only those that ran to their end are compared."
    if left_out:
        text += f" {left_out} configurations are left out because the scheduler stopped some of their seeds."
    if silent:
        more = f" and {len(silent) - MAX_NAMED} more" if silent[MAX_NAMED:] else ""
        text += (
            f" {len(silent)} configurations make no claim, because a seed of theirs failed and the seeds that are "
            f"left are the luckier ones: {', '.join(silent[:MAX_NAMED])}{more}."
        )
    return text


def _best(judged: pd.DataFrame, mode: str) -> Any:
    table = judged.groupby("label").score.agg(average="mean", count="count").reset_index()
    ordered = rows(table.sort_values("average", kind="stable"))
    return ordered[-1] if mode == "max" else ordered[0]


def _seeds(count: int) -> str:
    return f", mean of {count} seeds" if count > 1 else ", one seed"


def _matched(seeds: int) -> str:
    return " without a seed in common" if seeds == 0 else f" on {seeds} matched seed{'s' * (seeds > 1)}"


def _hours(hours: float, device: str) -> str:
    return f"{number(hours * 60, 2)} {device}-minutes" if hours < 1 else f"{number(hours, 3)} {device}-hours"
