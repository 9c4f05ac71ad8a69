"""The sentences at the top of a report: what won, by how much, whether that is more than noise, what to run."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dashboards import words
from dashboards.pictures.confirmation import finalists
from dashboards.pictures.decision import decided
from dashboards.pictures.judged import baseline, changed_from_baseline, comparable, judge, judge_fresh
from dashboards.pictures.theme import rows
from dashboards.pictures.tournament import tournament_line
from dashboards.statistics.verdict import Tested, Verdict
from dashboards.sweep import Sweep
from dashboards.words import device_time, number, signed
from trainer.config.variants import short_names, shown
from trainer.shell.table import counted

_SEEDS_TO_TELL = 3  # asked for where the seeds of a sweep tell nothing
_WORDS = {
    "COMPLETE": "complete",
    "PRUNED": "stopped early",
    "FAIL": "failed",
    "RUNNING": "running",
    "KILLED": "interrupted",
}


@dataclass(frozen=True)
class Headline:
    """The verdict in a sentence. Fresh seeds decide it where they were run."""

    sentence: str
    step: str = ""  # what to do next, with one command
    confirmed: bool = False  # whether fresh seeds showed a gain
    configuration: str | None = None  # that fresh seeds chose; None where they decided nothing


def verdict(sweep: Sweep) -> list[str]:
    """The headline, what to run next, then what it rests on. A configuration is named in full once, then by #N."""
    told = headline(sweep)
    found = None if comparable(sweep).empty or sweep.arms else judge(sweep)
    fresh = sweep.confirmation
    lines = [
        told.sentence,
        told.step,
        _apart(sweep, found),
        _noise(found) if found is not None and fresh is None else "",
        f"On fresh seeds: {_on_fresh_seeds(sweep, fresh)}" if fresh else "",
        f"The search, whose best was also picked for its luck: {_in_search(sweep).sentence}"
        if fresh and found
        else "",
        _cost(sweep, fresh),
        _counts(sweep),
    ]
    return _named_once([line for line in lines if line], set(sweep.trials.label))


def headline(sweep: Sweep) -> Headline:
    """What the best evidence says: fresh seeds, else those of the search."""
    if sweep.arms:  # the best of many on the seeds that chose it is no finding
        return Headline(tournament_line(sweep))
    told = _of_fresh_seeds(sweep, sweep.confirmation) if sweep.confirmation else None
    return told or _in_search(sweep)


def confirmed(sweep: Sweep) -> list[str]:
    """A confirmation's result, for the end of its command: the verdict, then the scores on the sealed test."""
    told, fresh = headline(sweep), sweep.confirmation
    reason = "" if fresh is None else _on_fresh_seeds(sweep, fresh)
    return [line for line in (told.sentence, reason, told.step, finalists(sweep).sentence) if line]


def _named_once(lines: list[str], labels: Collection[str]) -> list[str]:
    """The lines with every configuration's label cut to its number wherever it was named before."""
    text = "\n".join(lines)
    for label in sorted(labels, key=len, reverse=True):
        head, named, rest = text.partition(label)
        text = head + named + rest.replace(label, label.split(" ")[0])
    return text.split("\n")


def _in_search(sweep: Sweep) -> Headline:
    judged = comparable(sweep)
    if judged.empty:
        return Headline("No configuration has run to its end with a score yet.")
    found, metric = judge(sweep), sweep.objective.metric
    if found is None:
        best = _best(judged, sweep.objective.mode)
        first = f"Highest: {best.label}, {metric} {number(best.average)} ({counted(best.count, 'seed')})"
        return Headline(f"{first}; {_no_baseline(sweep)}.", "Next: run the baseline on the same seeds.")
    if judged.label.nunique() == 1:
        mean = number(judged.score.mean())
        return Headline(f"Only the baseline {found.baseline} has a score: {metric} {mean}.", _next_step(sweep, found))
    return Headline(words.searched(found), _next_step(sweep, found))


def _of_fresh_seeds(sweep: Sweep, fresh: Sweep) -> Headline | None:
    """The headline after a confirmation; None before it has anything to compare."""
    numbers = dict(zip(fresh.trials.label, fresh.trials.configuration, strict=True))
    export = f"`sweep export {sweep.name}` writes it."
    base = baseline(fresh)
    if fresh.rounds is not None:
        last = fresh.rounds.standings.groupby("configuration", sort=False).tail(1)
        better = last[last.decision == "better"]
        if better.empty and fresh.rounds.outcome == "not better":
            sentence = f"Keep the baseline {base}: on fresh seeds no finalist is better by "
            sentence += f"{fresh.rounds.worthwhile:g}."
            return Headline(sentence, f"Next: keep the baseline; {export}", configuration=numbers.get(base))
        if better.empty:
            return None if last.empty else Headline("Undecided: fresh seeds have not told any finalist apart yet.")
        best = rows(better.sort_values("gain"))[0 if sweep.objective.mode == "min" else -1]
        labels = {own: label for label, own in numbers.items()}
        label = labels.get(best.configuration, f"#{best.configuration}")
        sentence = f"Confirmed: {label} beats the baseline {base}: {signed(best.gain)} ({best.seeds} fresh seeds)."
        return Headline(sentence, f"Next: train with it; {export}", True, best.configuration)
    found = judge_fresh(fresh, sweep)
    if found is None or (found.best == found.baseline and not found.failed):
        return None
    if isinstance(found, Tested) and found.claim == "evidence":
        return Headline(words.confirmed(found), f"Next: train with it; {export}", True, numbers[found.best])
    if not found.improves and found.best != found.baseline:
        step = f"Next: keep the baseline; {export}"
        return Headline(words.confirmed(found), step, configuration=numbers[found.baseline])
    return Headline(words.confirmed(found), f"Next: {words.next_step(found)}")


def _on_fresh_seeds(sweep: Sweep, fresh: Sweep) -> str:
    """What the headline of a confirmation rests on, or how far the confirmation is."""
    if fresh.rounds is not None:
        return decided(fresh)
    found = judge_fresh(fresh, sweep)
    if found is None or (found.best == found.baseline and not found.failed):
        return f"{fresh.progress}."
    return _noise(found)


def _no_baseline(sweep: Sweep) -> str:
    if sweep.baseline is None:
        return "no baseline is listed, and no plain configuration (alpha 0, eta 0) ran to its end"
    return f"the baseline #{sweep.baseline} did not run to its end"


def _apart(sweep: Sweep, found: Verdict | None) -> str:
    """The settings in which the best differs from the baseline, if several: the gain belongs to all of them."""
    if found is None or found.winner == found.baseline:
        return ""
    changed = changed_from_baseline(sweep, found.best)
    if len(changed) < 2:
        return ""
    called = short_names(sweep.varied)
    said = words.changes({called[name]: (shown(value), shown(base)) for name, (value, base) in changed.items()})
    return f"{found.best} differs from the baseline in {said}: what it gains is that of all of these together."


def _noise(found: Verdict) -> str:
    """State how the judgement was made, and what difference these seeds could have shown."""
    return " ".join(sentence for sentence in (words.reason(found), words.noise(found)) if sentence)


def _cost(sweep: Sweep, fresh: Sweep | None) -> str:
    hours = pd.concat([one.device_hours() for one in (sweep, fresh) if one]).dropna()
    if hours.empty:
        return ""
    several = " (search and fresh seeds)" if fresh else ""
    return (
        f"Cost so far: {device_time(hours.sum(), sweep.device)} in {len(hours)} trials{several}, "
        f"{device_time(hours.median(), sweep.device)} a trial in the median."
    )


def _next_step(sweep: Sweep, found: Verdict) -> str:
    step = words.next_step(found)
    if isinstance(found, Tested):
        seeds = found.confirmation_seeds
        if found.claim != "none":
            seeds = max(_SEEDS_TO_TELL, seeds or 0)
        elif not found.improves:
            seeds = None
    else:
        seeds = _SEEDS_TO_TELL if found.why in ("one seed", "no shared seed") else None
        step = "Run the best configuration and the baseline on fresh seeds." if seeds else step
    if seeds is None:
        return f"Next: {step}"
    command = f"sweep confirm {sweep.name} --finalists 1 --seeds {seeds}"
    trials = 2 * seeds
    price = float(sweep.device_hours()[sweep.trials.state == "COMPLETE"].median())
    cost = "" if math.isnan(price) else f", about {device_time(price * trials, sweep.device)}"
    rounds = " With --rounds it stops as soon as it is known."
    return f"Next: {step} `{command}` does it: {trials} trials{cost}.{rounds}"


def _counts(sweep: Sweep) -> str:
    if sweep.trials.empty:
        return "The sweep has no trials yet."
    states = sweep.trials.state.value_counts()
    counts = ", ".join(f"{count} {_WORDS.get(str(state), str(state))}" for state, count in states.items())
    left_out = sweep.complete().configuration.nunique() - comparable(sweep).configuration.nunique()
    text = f"{len(sweep.trials)} trials: {counts}; only those that ran to their end are compared."
    if left_out:
        text += f" {left_out} configurations are left out because the scheduler stopped some of their seeds."
    return text


def _best(judged: pd.DataFrame, mode: str) -> Any:
    table = judged.groupby("label").score.agg(average="mean", count="count").reset_index()
    ordered = rows(table.sort_values("average", kind="stable"))
    return ordered[-1] if mode == "max" else ordered[0]
