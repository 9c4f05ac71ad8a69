"""The sentences at the top of a report: the winner, its improvement, whether that is more than
noise, the next step.
"""

import math
import statistics
from collections.abc import Collection
from dataclasses import dataclass, replace

from dashboards import words
from dashboards.fresh_seeds import FRESH_SEEDS, MIN_SEEDS
from dashboards.pictures.confirmation import finalists
from dashboards.pictures.tournament import chosen_rule, tournament_line
from dashboards.results import Results, Rounds
from dashboards.statistics.sequential import InterimResult
from dashboards.statistics.verdict import Tested, Undecided, Verdict
from dashboards.words import device_time, number, signed
from loptune.parameter_names import short_names, shown
from loptune.terminal.table import counted

_STATE_TEXT = {
    "COMPLETE": "complete",
    "PRUNED": "stopped early",
    "FAIL": "failed",
    "RUNNING": "running",
    "KILLED": "interrupted",
}


@dataclass(frozen=True)
class Headline:
    """The verdict in one sentence, from fresh seeds if they were run."""

    sentence: str
    step: str = ""  # the next step, with one command
    confirmed: bool = False  # whether fresh seeds confirmed an improvement
    configuration: str | None = None  # chosen by fresh seeds; None if they decided nothing


def verdict(results: Results) -> list[str]:
    """Return the headline, the next step and the evidence. A configuration's full label appears
    once, then only #N.
    """
    front = headline(results)
    judged = None
    if not results.comparable.empty and not results.arms:
        judged = results.verdict
    fresh = results.fresh
    lines = [front.sentence, front.step, *_about_arms(results), _changed_settings(results, judged)]
    if fresh is not None:
        lines.append(_on_fresh_seeds(results, fresh))
        lines.append(words.repeated(fresh.earlier_confirmations))
        if judged is not None:
            biased = "On the search's own seeds, where the best score is biased upward:"
            lines.append(f"{biased} {_in_search(results).sentence}")
    elif judged is not None:
        lines.append(_noise(judged))
    lines += [_cost(results, fresh), _trial_counts(results)]
    return _named_once([line for line in lines if line], set(results.table.label))


def _scored(results: Results, sentence: str) -> str:
    """Add the score's name and direction to a headline that compares scores."""
    if results.comparable.empty:
        return sentence
    objective = results.objective
    return f"{sentence} {words.score_direction(objective.metric, objective.mode)}"


def _ended_below_start(results: Results) -> str:
    """Warn if the mean score of every configuration is worse than the score before training."""
    metric = results.objective.metric
    sign = results.objective.sign
    changes: dict[str, list[float]] = {}
    for trial in results.trials:
        curve = trial.curves.get(metric)
        if curve is not None and curve.steps[0] == 0 and trial.state == "COMPLETE":
            change = sign * (trial.score - curve.values[0])
            changes.setdefault(trial.configuration, []).append(change)
    judged = set(results.comparable.configuration)
    if not judged or not judged <= changes.keys():
        return ""
    means = [statistics.fmean(changes[configuration]) for configuration in judged]
    if max(means) >= 0:
        return ""
    least = signed(sign * max(means))
    most = signed(sign * min(means))
    return (
        "Training made every configuration worse: all scores ended below their start "
        f"(change {least} to {most} on average). Compare nothing "
        "before that is fixed, for example with a smaller learning rate."
    )


def _about_arms(results: Results) -> list[str]:
    """Return the facts that the table of all arms adds to the headline: the way of comparing,
    missing and failed runs, worse arms, and arms that are not worse by a margin.
    """
    rows = results.arm_table
    judged = results if results.fresh is None else results.fresh
    lines = [words.layouts(rows, judged.pairing)]
    if judged.pairing is not None:
        lines.append(words.runs(rows))
    chosen_by_nothing = results.nothing_chosen or results.fresh is not None
    if chosen_by_nothing and len(rows) > 2:  # the headline states a single difference
        lines.append(words.worse(rows))
    if results.not_worse_by is not None:
        lines.append(words.not_worse(rows, results.not_worse_by))
    return lines


def headline(results: Results) -> Headline:
    """Return the headline from the best evidence: fresh seeds, else the search's seeds."""
    if results.arms:  # the best of many scores is not a finding on the seeds that selected it
        return _of_rules(results)
    confirmation = _of_fresh_seeds(results, results.fresh) if results.fresh else None
    found = confirmation or _in_search(results)
    parts = [_scored(results, found.sentence), _ended_below_start(results)]
    return replace(found, sentence=" ".join(part for part in parts if part))


def confirmed(results: Results) -> list[str]:
    """Return the lines that `sweep confirm` prints at its end: verdict, evidence, next step,
    held-out scores.
    """
    front = headline(results)
    fresh = results.fresh
    scores = finalists(results)
    lines = [front.sentence]
    if fresh is not None:
        if len(results.arm_table) > 2:  # the headline states a single difference
            lines.append(words.worse(results.arm_table))
        lines.append(_on_fresh_seeds(results, fresh))
        lines.append(words.repeated(fresh.earlier_confirmations))
    lines.append(front.step)
    if scores is not None:
        lines.append(scores.sentence)
    return [line for line in lines if line]


def _named_once(lines: list[str], labels: Collection[str]) -> list[str]:
    """Shorten each repeated configuration label to its number."""
    text = "\n".join(lines)
    for label in sorted(labels, key=len, reverse=True):
        head, named, rest = text.partition(label)
        text = head + named + rest.replace(label, label.split(" ")[0])
    return text.split("\n")


def _of_rules(results: Results) -> Headline:
    """Return the headline of rules that were tuned separately, and what to export after fresh
    seeds.
    """
    sentence = tournament_line(results)
    base = results.arms[0]
    fresh = results.fresh
    if fresh is None or not fresh.finished or not results.arm_results or not results.name:
        return Headline(sentence)
    rule = chosen_rule(results)
    if all(result.interval is None for result in results.arm_results):
        return Headline(sentence)  # nothing is compared
    if rule is None:
        command = results.command("export", "--baseline")
        return Headline(
            sentence,
            f"Next: keep {base}, which no rule is shown to beat; `{command}` writes its best "
            "setting.",
        )
    command = results.command("export")
    tried = dict.fromkeys(trial.configuration for trial in fresh.trials)
    configuration = next(each for each in tried if results.arm_of[each] == rule)
    step = f"Next: train with {rule}; `{command}` writes its best setting."
    if rule == base:
        step = f"Next: keep {base}; `{command}` writes its best setting."
    return Headline(sentence, step, confirmed=rule != base, configuration=configuration)


def _in_search(results: Results) -> Headline:
    judged = results.comparable
    if judged.empty:
        return Headline(words.NOTHING_ENDED)
    answer = results.verdict
    metric = results.objective.metric
    if answer is None:
        best = judged[judged.configuration == results.best_of(judged)]
        seeds = counted(len(best), "seed")
        first = f"Best so far: {best.label.iloc[0]}, {metric} {number(best.score.mean())} ({seeds})"
        return Headline(
            f"{first}; {_no_baseline(results)}.", "Next: run the baseline on the same seeds."
        )
    if judged.label.nunique() == 1 and results.against is None:
        mean = number(judged.score.mean())
        sentence = f"Only the baseline {answer.baseline} has finished: {metric} {mean}."
        return Headline(sentence, _next_step(results, answer))
    if results.nothing_chosen:
        return _of_listed(results, answer)
    return Headline(words.searched(answer), _next_step(results, answer))


def _of_listed(results: Results, answer: Verdict) -> Headline:
    """Return the headline of configurations that no score has chosen: their seeds are evidence."""
    worthwhile = results.objective.worthwhile
    sentence = words.confirmed(answer, worthwhile, "seed")
    export = f"; `{results.command('export')}` writes it." if results.name else "."
    if isinstance(answer, Tested) and answer.claim == "evidence":
        chosen = results.numbers.get(answer.best)
        return Headline(sentence, f"Next: train with it{export}", True, chosen)
    if words.keeps_baseline(answer, worthwhile):
        chosen = results.numbers.get(answer.baseline)
        return Headline(sentence, f"Next: keep the baseline{export}", configuration=chosen)
    return Headline(sentence, _next_step(results, answer))


def _of_fresh_seeds(results: Results, fresh: Results) -> Headline | None:
    """Return the headline after a confirmation; None before it has anything to compare."""
    numbers = fresh.numbers
    export = f"; `{results.command('export')}` writes it." if results.name else "."
    base = fresh.baseline_label
    if fresh.rounds is not None:
        best = fresh.rounds.winner
        if best is None and fresh.rounds.outcome == "not better":
            finding = f"improves by less than {fresh.rounds.worthwhile:g}"
            if all(result.decision == "worse" for result in fresh.rounds.last):
                finding = "is worse"
            sentence = f"Keep the baseline {base}: fresh seeds show that every finalist {finding}."
            return Headline(
                sentence, f"Next: keep the baseline{export}", configuration=numbers.get(base or "")
            )
        if best is None:
            undecided = Headline(
                "Undecided: fresh seeds do not yet separate any finalist from the baseline.",
                _after_rounds(results, fresh.rounds),
            )
            return undecided if fresh.rounds.results else None
        label = fresh.labels.get(best.finalist, f"#{best.finalist}")
        sentence = (
            f"Confirmed: {label} beats the baseline {base}: {signed(best.gain)} "
            f"({best.seeds} fresh seeds)."
        )
        return Headline(sentence, f"Next: train with it{export}", True, best.finalist)
    judged = results.fresh_verdict
    if judged is None and fresh.finished:
        return Headline(
            "Not confirmed: the baseline failed on every fresh seed.", f"Next: {words.FIX_FAILURES}"
        )
    if judged is None or judged.best == judged.baseline:
        return None
    if isinstance(judged, Tested) and judged.claim == "evidence":
        return Headline(
            words.confirmed(judged), f"Next: train with it{export}", True, numbers[judged.best]
        )
    worthwhile = results.objective.worthwhile
    if words.keeps_baseline(judged, worthwhile):
        return Headline(
            words.confirmed(judged, worthwhile),
            f"Next: keep the baseline{export}",
            configuration=numbers[judged.baseline],
        )
    return Headline(words.confirmed(judged, worthwhile), _confirm_again(results, judged))


def _confirm_again(results: Results, judged: Verdict) -> str:
    """Advise on the next step after an undecided confirmation, with the command."""
    step = words.next_step(judged)
    needed = _seeds_to_confirm(judged)
    if needed is None or not results.name or results.fresh is None:
        return f"Next: {step}"
    seeds = max(MIN_SEEDS, needed)
    number = results.fresh.numbers[judged.best]
    command = results.command(
        "confirm", "--again", "--configurations", number, "--seeds", str(seeds)
    )
    return (
        f"Next: {step} To do so: `{command}` ({2 * seeds} trials, which are judged on their own)."
    )


def _seeds_to_confirm(judged: Verdict) -> int | None:
    """Return how many new seeds would decide a comparison; None if more seeds do not help."""
    if isinstance(judged, Undecided):
        if judged.why in ("one seed", "no shared seed"):
            return FRESH_SEEDS
        return None
    if judged.claim == "too few seeds":
        return max(FRESH_SEEDS, judged.confirmation_seeds or 0)
    if judged.improves:
        return judged.confirmation_seeds
    return judged.deciding_seeds


def _after_rounds(results: Results, rounds: Rounds) -> str:
    """Advise on the next step after rounds that decided nothing; empty while rounds are left."""
    if rounds.last and all(result.low is None for result in rounds.last):
        return f"Next: {words.no_spread()}"
    if rounds.outcome != "undecided" or not results.name:
        return ""
    nearest = max(rounds.last, key=lambda result: result.gain)
    seeds = 2 * rounds.planned[-1]
    command = results.command(
        "confirm", "--again", "--configurations", nearest.finalist, "--seeds", str(seeds)
    )
    return (
        f"Next: keep the baseline, or run the nearest finalist, #{nearest.finalist}, on twice as "
        f"many new seeds: `{command}`."
    )


def _on_fresh_seeds(results: Results, fresh: Results) -> str:
    """Return the evidence behind a confirmation's headline, or the confirmation's progress."""
    if fresh.rounds is not None:
        return _decided(results, fresh, fresh.rounds)
    judged = results.fresh_verdict
    if judged is None or judged.best == judged.baseline:
        return f"On fresh seeds: {fresh.progress}."
    if results.arms:  # the headline's interval includes tuning variance, this one does not
        return f"On fresh seeds, of these settings alone and not of their rules: {_noise(judged)}"
    return f"On fresh seeds: {_noise(judged)}"


def _decided(results: Results, fresh: Results, decision: Rounds) -> str:
    """State the decision on each finalist, the cost, and the caveats of the winner."""
    if not decision.last:
        return (
            "On fresh seeds nothing is decided yet: the first interim analysis is after "
            f"{decision.planned[0]} seeds per configuration."
        )

    def label(result: InterimResult) -> str:
        return fresh.labels.get(result.finalist, f"#{result.finalist}")

    estimates = []
    for result in decision.last:
        text = words.interim_result_text(label(result), result, decision.worthwhile)
        estimates.append(text)
    compared = {result.finalist for result in decision.results}  # without the baseline
    most_seeds = decision.planned[-1]
    most_trials = (len(compared) + 1) * most_seeds
    decided = (
        f"On at most {most_seeds} fresh seeds per configuration: "
        f"{'; '.join(estimates)}. This took {fresh.ended} of at most "
        f"{most_trials} trials, {device_time(sum(fresh.cost), fresh.device)}."
    )
    overall = results.fresh_verdict
    judged = overall
    seeds = 0
    if decision.winner is not None:
        judged = results.verdict_on_fresh(label(decision.winner))
        seeds = decision.winner.seeds
    if judged is None or overall is None:
        return decided
    return f"{decided} {words.caveats(judged, overall.failed, seeds)}".rstrip()


def _no_baseline(results: Results) -> str:
    if results.baseline is None:
        return words.NO_BASELINE
    return f"the baseline #{results.baseline} has not finished"


def _changed_settings(results: Results, judged: Verdict | None) -> str:
    """List the settings in which the best differs from the baseline, if there are several: the gain
    cannot be attributed to one.
    """
    if judged is None or judged.winner == judged.baseline:
        return ""
    changed = results.changed(judged.best)
    if len(changed) < 2:
        return ""
    called = short_names(results.varied)
    differences = words.changes(
        {called[name]: (shown(value), shown(base)) for name, (value, base) in changed.items()}
    )
    return (
        f"{judged.best} differs from the baseline in {differences}: the improvement is that "
        "of all these changes together."
    )


def _noise(judged: Verdict) -> str:
    """State the test result and the detectable improvement."""
    sentences = (words.reason(judged), words.noise(judged))
    return " ".join(filter(None, sentences))


def _cost(results: Results, fresh: Results | None) -> str:
    hours = results.cost
    if not hours:
        return ""
    several = " (search and fresh seeds)" if fresh else ""
    return (
        f"Cost so far: {device_time(sum(hours), results.device)} for {len(hours)} trials{several}, "
        f"median {device_time(statistics.median(hours), results.device)} per trial."
    )


def _has_complete_other(results: Results) -> bool:
    """Return whether a configuration besides the baseline is complete on all seeds, as `sweep
    confirm` needs.
    """
    seeds = results.table.seed.nunique()
    complete = results.comparable.groupby("configuration").seed.nunique() == seeds
    return any(complete[complete].index != results.baseline)


def _next_step(results: Results, judged: Verdict) -> str:
    step = words.next_step(judged)
    seeds = _fresh_seeds(judged)
    if seeds is not None and isinstance(judged, Undecided):
        step = "Run the best configuration and the baseline on fresh seeds."
    if seeds is None or not results.name:
        return f"Next: {step}"
    if results.planned is not None and not results.finished and not _has_complete_other(results):
        return f"Next: {step} First finish the sweep: `{results.command('resume')}`."
    command = results.command("confirm", "--finalists", "1", "--seeds", str(seeds))
    trials = 2 * seeds
    price = float(results.table.hours[results.table.state == "COMPLETE"].median())
    cost = "" if math.isnan(price) else f", about {device_time(price * trials, results.device)}"
    rounds = " With --rounds it stops as soon as the result is clear."
    return f"Next: {step} Run `{command}`: {trials} trials{cost}.{rounds}"


def _fresh_seeds(judged: Verdict) -> int | None:
    """Return how many fresh seeds a first confirmation needs; None if there is nothing to
    confirm.
    """
    if isinstance(judged, Undecided):
        return FRESH_SEEDS if judged.why in ("one seed", "no shared seed") else None
    if judged.claim != "none":
        return max(FRESH_SEEDS, judged.confirmation_seeds or 0)
    return judged.confirmation_seeds if judged.improves else None


def _trial_counts(results: Results) -> str:
    if results.table.empty:
        return words.NO_TRIALS
    states = results.table.state.value_counts()
    counts = ", ".join(
        f"{count} {_STATE_TEXT.get(str(state), str(state))}" for state, count in states.items()
    )
    complete = {trial.configuration for trial in results.trials if trial.state == "COMPLETE"}
    left_out = len(complete - set(results.comparable.configuration))
    text = f"{len(results.table)} trials: {counts}; only complete trials are compared."
    if results.fresh is not None:
        text = f"Of the search: {text} On fresh seeds: {len(results.fresh.table)} trials."
    if left_out:
        text += (
            f" Excluded, because the scheduler stopped some of their seeds: "
            f"{counted(left_out, 'configuration')}."
        )
    ends = results.comparable.step
    if ends.nunique() > 1:
        text += f" They ended at different steps, {ends.min():g} to {ends.max():g}."
    scored = (trial.curves.get(results.objective.metric) for trial in results.trials)
    if any(curve and 0 in curve.steps[-results.objective.window :] for curve in scored):
        text += (
            " Some scores include the evaluation before training: set a smaller objective.window."
        )
    return text
