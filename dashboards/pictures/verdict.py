"""The sentences at the top of a report: what won, by how much, whether that is more than noise, what to run."""

import math
import statistics
from collections.abc import Collection
from dataclasses import dataclass

from dashboards import words
from dashboards.pictures.confirmation import finalists
from dashboards.pictures.tournament import tournament_line
from dashboards.results import Results
from dashboards.statistics.verdict import Tested, Verdict
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


def verdict(results: Results) -> list[str]:
    """The headline, what to run next, then what it rests on. A configuration is named in full once, then by #N."""
    told = headline(results)
    found = None if results.comparable.empty or results.arms else results.verdict
    fresh = results.fresh
    lines = [
        told.sentence,
        told.step,
        _apart(results, found),
        _noise(found) if found is not None and fresh is None else "",
        _on_fresh_seeds(results, fresh) if fresh else "",
        f"The search, whose best was also picked for its luck: {_in_search(results).sentence}"
        if fresh and found
        else "",
        _cost(results, fresh),
        _counts(results),
    ]
    return _named_once([line for line in lines if line], set(results.table.label))


def headline(results: Results) -> Headline:
    """What the best evidence says: fresh seeds, else those of the search."""
    if results.arms:  # the best of many on the seeds that chose it is no finding
        return Headline(tournament_line(results))
    told = _of_fresh_seeds(results, results.fresh) if results.fresh else None
    return told or _in_search(results)


def confirmed(results: Results) -> list[str]:
    """A confirmation's result, for the end of its command: the verdict, then the scores on the sealed test."""
    told, fresh, scores = headline(results), results.fresh, finalists(results)
    reason = "" if fresh is None else _on_fresh_seeds(results, fresh)
    return [line for line in (told.sentence, reason, told.step, scores and scores.sentence) if line]


def _named_once(lines: list[str], labels: Collection[str]) -> list[str]:
    """The lines with every configuration's label cut to its number wherever it was named before."""
    text = "\n".join(lines)
    for label in sorted(labels, key=len, reverse=True):
        head, named, rest = text.partition(label)
        text = head + named + rest.replace(label, label.split(" ")[0])
    return text.split("\n")


def _in_search(results: Results) -> Headline:
    judged = results.comparable
    if judged.empty:
        return Headline("No configuration has run to its end with a score yet.")
    found, metric = results.verdict, results.objective.metric
    if found is None:
        best = judged[judged.configuration == results.best_of(judged)]
        seeds = counted(len(best), "seed")
        first = f"Highest: {best.label.iloc[0]}, {metric} {number(best.score.mean())} ({seeds})"
        return Headline(f"{first}; {_no_baseline(results)}.", "Next: run the baseline on the same seeds.")
    if judged.label.nunique() == 1:
        mean = number(judged.score.mean())
        sentence = f"Only the baseline {found.baseline} has a score: {metric} {mean}."
        return Headline(sentence, _next_step(results, found))
    if not results.name and not results.adaptive:  # nobody chose by these seeds
        claimed = isinstance(found, Tested) and found.claim == "evidence"
        step = "Next: train with it." if claimed else f"Next: {words.next_step(found)}"
        return Headline(words.confirmed(found), step, claimed)
    return Headline(words.searched(found), _next_step(results, found))


def _of_fresh_seeds(results: Results, fresh: Results) -> Headline | None:
    """The headline after a confirmation; None before it has anything to compare."""
    numbers = fresh.numbers
    export = f"; `sweep export {results.name}` writes it." if results.name else "."
    base = fresh.baseline_label
    if fresh.rounds is not None:
        best = fresh.rounds.winner
        if best is None and fresh.rounds.outcome == "not better":
            sentence = f"Keep the baseline {base}: on fresh seeds no finalist is better by "
            sentence += f"{fresh.rounds.worthwhile:g}."
            return Headline(sentence, f"Next: keep the baseline{export}", configuration=numbers.get(base or ""))
        if best is None:
            undecided = Headline("Undecided: fresh seeds have not told any finalist apart yet.")
            return undecided if fresh.rounds.standings else None
        label = fresh.labels.get(best.finalist, f"#{best.finalist}")
        sentence = f"Confirmed: {label} beats the baseline {base}: {signed(best.gain)} ({best.seeds} fresh seeds)."
        return Headline(sentence, f"Next: train with it{export}", True, best.finalist)
    found = results.fresh_verdict
    if found is None or (found.best == found.baseline and not found.failed):
        return None
    if isinstance(found, Tested) and found.claim == "evidence":
        return Headline(words.confirmed(found), f"Next: train with it{export}", True, numbers[found.best])
    if not found.improves and found.best != found.baseline:
        step = f"Next: keep the baseline{export}"
        return Headline(words.confirmed(found), step, configuration=numbers[found.baseline])
    return Headline(words.confirmed(found), f"Next: {words.next_step(found)}")


def _on_fresh_seeds(results: Results, fresh: Results) -> str:
    """What the headline of a confirmation rests on, or how far the confirmation is."""
    if fresh.rounds is not None:
        return _decided(fresh)
    found = results.fresh_verdict
    if found is None or (found.best == found.baseline and not found.failed):
        return f"On fresh seeds: {fresh.progress}."
    return f"On fresh seeds: {_noise(found)}"


def _decided(fresh: Results) -> str:
    """The decision on every finalist and what it took; empty where the finalists do not run in rounds."""
    found = fresh.rounds
    if found is None:
        return ""
    finalists = dict.fromkeys(stands.finalist for stands in found.standings)
    labels = {name: fresh.labels.get(name, f"#{name}") for name in finalists}
    said = [words.standing(labels[stands.finalist], stands, found.worthwhile) for stands in found.last]
    if not said:
        return f"On fresh seeds nothing is decided yet: the first look is after {found.planned[0]} of each."
    return (
        f"On fresh seeds, of at most {found.planned[-1]} planned: {'; '.join(said)}. That took {fresh.ended} trials "
        f"of at most {(len(labels) + 1) * found.planned[-1]}, {device_time(sum(fresh.cost), fresh.device)}."
    )


def _no_baseline(results: Results) -> str:
    if results.baseline is None:
        return "no baseline is listed, and no plain configuration (alpha 0, eta 0) ran to its end"
    return f"the baseline #{results.baseline} did not run to its end"


def _apart(results: Results, found: Verdict | None) -> str:
    """The settings in which the best differs from the baseline, if several: the gain belongs to all of them."""
    if found is None or found.winner == found.baseline:
        return ""
    changed = results.changed(found.best)
    if len(changed) < 2:
        return ""
    called = short_names(results.varied)
    said = words.changes({called[name]: (shown(value), shown(base)) for name, (value, base) in changed.items()})
    return f"{found.best} differs from the baseline in {said}: what it gains is that of all of these together."


def _noise(found: Verdict) -> str:
    """State how the judgement was made, and what difference these seeds could have shown."""
    return " ".join(sentence for sentence in (words.reason(found), words.noise(found)) if sentence)


def _cost(results: Results, fresh: Results | None) -> str:
    hours = results.cost
    if not hours:
        return ""
    several = " (search and fresh seeds)" if fresh else ""
    return (
        f"Cost so far: {device_time(sum(hours), results.device)} in {len(hours)} trials{several}, "
        f"{device_time(statistics.median(hours), results.device)} a trial in the median."
    )


def _next_step(results: Results, found: Verdict) -> str:
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
    if seeds is None or not results.name:
        return f"Next: {step}"
    command = f"sweep confirm {results.name} --finalists 1 --seeds {seeds}"
    trials = 2 * seeds
    price = float(results.table.hours[results.table.state == "COMPLETE"].median())
    cost = "" if math.isnan(price) else f", about {device_time(price * trials, results.device)}"
    rounds = " With --rounds it stops as soon as it is known."
    return f"Next: {step} `{command}` does it: {trials} trials{cost}.{rounds}"


def _counts(results: Results) -> str:
    if results.table.empty:
        return "The sweep has no trials yet."
    states = results.table.state.value_counts()
    counts = ", ".join(f"{count} {_WORDS.get(str(state), str(state))}" for state, count in states.items())
    whole = {trial.configuration for trial in results.trials if trial.state == "COMPLETE"}
    left_out = len(whole - set(results.comparable.configuration))
    text = f"{len(results.table)} trials: {counts}; only those that ran to their end are compared."
    if left_out:
        text += f" {left_out} configurations are left out because the scheduler stopped some of their seeds."
    ends = results.comparable.step
    if ends.nunique() > 1:
        text += f" They end at different steps, {ends.min():g} to {ends.max():g}."
    return text
