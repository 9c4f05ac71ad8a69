"""The sentences at the top of a report: the winner, its improvement, whether that is more than
noise, the next step.
"""

import statistics
from dataclasses import dataclass

from dashboards import words
from dashboards.cost_ratios import cost_ratios
from dashboards.next_step import chosen, next_step
from dashboards.pictures.confirmation import finalists
from dashboards.pictures.tournament import tournament_line
from dashboards.results import Results
from dashboards.rounds import Rounds
from dashboards.sources.unseeded_runs import NOTE as UNSEEDED
from dashboards.statistics.blocks import Blocks
from dashboards.statistics.verdict import Verdict
from dashboards.words import Name, device_time, number, signed
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
    confirmed: bool = False  # whether seeds that selected nothing show an improvement
    # configuration that these seeds single out; None if they are undecided, or if they keep a
    # baseline that is a number
    configuration: str | None = None


def verdict_sentences(results: Results) -> list[str]:
    """Return the headline, the next step and the evidence. A configuration's full label appears
    once, then only #N.
    """
    name = results.names()
    front = headline(results, name)
    search_verdict = None
    if not results.comparable.empty and not results.arms:
        search_verdict = results.verdict
    fresh = results.fresh
    lines = [front.sentence, front.step, _guards(results, name), _costs(results, name)]
    lines += _about_arms(results, name)
    lines.append(_changed_settings(results, search_verdict, name))
    if fresh is not None:
        lines += _evidence_of_fresh_seeds(results, fresh, name)
        if search_verdict is not None:
            biased = "On the search's own seeds, where the best score is biased upward:"
            lines.append(f"{biased} {_in_search(results, name)}")
    elif search_verdict is not None:
        lines.append(_noise(search_verdict, name, results.blocks()))
    lines += [_cost_so_far(results), _trial_counts(results)]
    return [line for line in lines if line]


def confirmation_sentences(results: Results) -> list[str]:
    """Return the lines that `sweep confirm` prints at its end: verdict, evidence, next step,
    held-out scores.
    """
    name = results.names()
    front = headline(results, name)
    fresh = results.fresh
    scores = finalists(results)
    lines = [front.sentence, _guards(results, name)]
    if fresh is not None:
        if len(results.arm_table) > 2:  # of two, the headline has stated the difference
            lines.append(words.worse(results.arm_table, name))
        lines += _evidence_of_fresh_seeds(results, fresh, name)
    lines.append(front.step)
    if scores is not None:
        lines.append(scores.sentence)
    return [line for line in lines if line]


def _evidence_of_fresh_seeds(results: Results, fresh: Results, name: Name) -> list[str]:
    """State what the fresh seeds show, and how earlier confirmations change it."""
    return [_on_fresh_seeds(results, fresh, name), words.repeated(fresh.earlier_confirmations)]


def _scored(results: Results, sentence: str) -> str:
    """Add the score's name and direction to a headline that compares scores."""
    if results.comparable.empty:
        return sentence
    objective = results.objective
    return f"{sentence} {words.score_direction(objective.metric, objective.mode)}"


def _ended_below_start(results: Results) -> str:
    """Warn if the mean score of every configuration is worse than the score before training; else
    return an empty string.
    """
    metric = results.objective.metric
    sign = results.objective.sign
    changes: dict[str, list[float]] = {}
    for trial in results.trials:
        curve = trial.curves.get(metric)
        if curve is not None and curve.steps[0] == 0 and trial.state == "COMPLETE":
            change = sign * (trial.score - curve.values[0])
            changes.setdefault(trial.configuration, []).append(change)
    compared = set(results.comparable.configuration)
    if not compared or not compared <= changes.keys():
        return ""
    means = [statistics.fmean(changes[configuration]) for configuration in compared]
    if max(means) >= 0:
        return ""
    least = signed(sign * max(means))
    most = signed(sign * min(means))
    return (
        "Every configuration scored worse after training than before "
        f"(mean change {least} to {most}). Fix this first, for example with a smaller learning "
        "rate; until then a comparison is meaningless."
    )


def _guards(results: Results, name: Name) -> str:
    """State which guards of the verdict's configuration hold; empty without guards, and if another
    sentence states them.
    """
    answer = results.answer
    if not results.guards or answer is None or answer.is_baseline_alone:
        return ""
    if results.arms:  # the headline states the guards of each arm
        return ""
    if results.fresh is not None and results.fresh.rounds is not None:
        return ""  # the decisions of the interim analyses state the guards
    return words.guards(results.checked_guards(answer.best), name(answer.best))


def _costs(results: Results, name: Name) -> str:
    """State which configurations have unequal costs, the verdict's configuration first; empty if
    there are none, with arms, and if the runs are compared with a number.
    """
    compared = results if results.fresh is None else results.fresh
    answer = results.answer
    if results.arms or results.against is not None or answer is None:
        return ""
    ratios = cost_ratios(compared)
    first = {answer.best: ratios[answer.best]} if answer.best in ratios else {}
    advised = bool(compared.place) and not compared.at_equal_amounts and not results.name
    return words.unequal_costs({**first, **ratios}, compared.place, name, advised=advised)


def _about_arms(results: Results, name: Name) -> list[str]:
    """Return the facts that the table of all arms adds to the headline: how arms were compared,
    missing and failed runs, worse arms, and arms shown to be not worse by a margin.
    """
    rows = results.arm_table
    compared = results if results.fresh is None else results.fresh
    blocks = compared.comparison is None or compared.comparison.blocks
    seeded = UNSEEDED not in compared.warnings
    lines = [words.layouts(rows, compared.pairing, name, blocks=blocks, seeded=seeded)]
    if compared.pairing is not None:
        lines += [words.runs(rows, name), words.not_compared(rows, name)]
    chosen_by_nothing = results.nothing_chosen or results.fresh is not None
    if chosen_by_nothing and len(rows) > 2:  # of two, the headline has stated the difference
        lines.append(words.worse(rows, name))
    if results.not_worse_by is not None:
        lines.append(words.not_worse(rows, results.not_worse_by, name))
    return lines


def headline(results: Results, name: Name | None = None) -> Headline:
    """Return the headline from the best evidence: fresh seeds, else the search's seeds."""
    name = results.names() if name is None else name
    sentence = _headline(results, name)
    step = next_step(results, name)
    choice = chosen(results)
    return Headline(
        sentence,
        step="" if step is None else step.text,
        confirmed=choice is not None and choice.is_gain,
        configuration=None if choice is None else choice.configuration,
    )


def _headline(results: Results, name: Name) -> str:
    """State the result, and warn if training made every configuration worse."""
    if results.arms:  # the best of many scores is not a finding on the seeds that selected it
        return tournament_line(results)
    found = "" if results.fresh is None else _on_fresh(results, results.fresh, name)
    parts = [_scored(results, found or _in_search(results, name)), _ended_below_start(results)]
    return " ".join(part for part in parts if part)


def _in_search(results: Results, name: Name) -> str:
    """State the result on the search's own seeds."""
    table = results.comparable
    if table.empty:
        return words.NOTHING_ENDED
    answer = results.verdict
    metric = results.objective.metric
    if answer is None:
        number_of_best = results.best_of(table)
        assert number_of_best is not None
        best = table[table.configuration == number_of_best]
        seeds = counted(len(best), "seed")
        mean = number(best.score.mean())
        first = f"Best so far: {name(number_of_best)}, {metric} {mean} ({seeds})"
        return f"{first}; {_no_baseline(results)}."
    if table.configuration.nunique() == 1 and results.against is None:
        mean = number(table.score.mean())
        return f"Only the baseline {name(answer.baseline)} has finished: {metric} {mean}."
    if results.fresh_verdict is None and results.not_guarded is not None:
        return words.not_guarded(answer, results.checked_guards(answer.best), name)
    if results.nothing_chosen:
        return words.confirmed(answer, name, results.objective.worthwhile, "seed")
    return words.searched(answer, name)


def _on_fresh(results: Results, fresh: Results, name: Name) -> str:
    """State the result of a confirmation; empty before it has anything to compare."""
    unguarded = results.not_guarded
    if unguarded is not None and results.fresh_verdict is not None:
        return words.not_guarded(unguarded, results.checked_guards(unguarded.best), name)
    if fresh.rounds is not None:
        return _in_rounds(results, fresh, fresh.rounds, name)
    judged = results.fresh_verdict
    if judged is None and results.fresh_finished:
        return "Not confirmed: the baseline failed on every fresh seed."
    if judged is None or judged.is_baseline_alone:
        return ""
    return words.confirmed(judged, name, results.objective.worthwhile)


def _in_rounds(results: Results, fresh: Results, rounds: Rounds, name: Name) -> str:
    """State the result of a sequential confirmation; empty before its first interim analysis."""
    best = rounds.winner
    base = fresh.compared_with
    if best is not None:
        label = name(best.configuration)
        baseline = "" if base is None else f" {name(base)}"
        seeds = counted(best.seeds, "fresh seed")
        return f"Confirmed: {label} beats the baseline{baseline}: {signed(best.gain)} ({seeds})."
    if rounds.outcome == "not better":
        finding = f"improves by less than {rounds.worthwhile:g}"
        outcomes = {result.outcome for result in rounds.last}
        if outcomes == {"worse"}:
            finding = "is worse"
        elif outcomes == {"fails a guard"}:
            finding = "fails a guard"
        elif "fails a guard" in outcomes:
            finding = f"fails a guard or {finding}"
        baseline = "" if base is None else f" {name(base)}"
        return f"Keep the baseline{baseline}: fresh seeds show that every finalist {finding}."
    if not rounds.results:
        return ""
    if results.guards:
        return (
            "Undecided: fresh seeds do not yet show that a finalist is better and that its guards "
            "hold."
        )
    return "Undecided: fresh seeds do not yet separate any finalist from the baseline."


def _on_fresh_seeds(results: Results, fresh: Results, name: Name) -> str:
    """Return the evidence behind a confirmation's headline, or the confirmation's progress."""
    if fresh.rounds is not None:
        return _decided(results, fresh, fresh.rounds, name)
    judged = results.fresh_verdict
    if judged is None or judged.is_baseline_alone:
        return f"On fresh seeds: {fresh.progress}."
    known = fresh.blocks(results.seed_scores)
    if results.arms:  # unlike the headline's interval, this one excludes tuning variance
        alone = "On fresh seeds, for these settings, not for their rules:"
        return f"{alone} {_noise(judged, name, known)}"
    return f"On fresh seeds: {_noise(judged, name, known)}"


def _decided(results: Results, fresh: Results, decision: Rounds, name: Name) -> str:
    """State the decision on each finalist, the cost, and the caveats of the winner."""
    if not decision.last:
        return (
            "On fresh seeds nothing is decided yet: the first interim analysis is after "
            f"{decision.planned[0]} seeds per configuration."
        )

    estimates = []
    for result in decision.last:
        text = words.interim_result_text(
            name(result.configuration),
            result,
            decision.worthwhile,
            results.checked_guards(result.configuration),
        )
        estimates.append(text)
    compared = {result.configuration for result in decision.results}  # without the baseline
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
        judged = results.verdict_on_fresh(decision.winner.configuration)
        seeds = decision.winner.seeds
    if judged is None or overall is None:
        return decided
    return f"{decided} {words.caveats(judged, overall.failed, seeds, name)}".rstrip()


def _no_baseline(results: Results) -> str:
    if results.baseline is None:
        return words.NO_BASELINE
    return f"the baseline #{results.baseline} has not finished"


def _changed_settings(results: Results, judged: Verdict | None, name: Name) -> str:
    """List the settings in which the best configuration differs from the baseline, if there are
    several, because the gain cannot be attributed to one of them; else return an empty string.
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
        f"{name(judged.best)} differs from the baseline in {differences}: any improvement is the "
        "effect of all these changes together."
    )


def _noise(judged: Verdict, name: Name, known: Blocks) -> str:
    """State the test result and the detectable improvement."""
    sentences = (words.reason(judged), words.noise(judged, name), words.blocks(known))
    return " ".join(filter(None, sentences))


def _cost_so_far(results: Results) -> str:
    """State the device time of all trials; empty if it was not recorded."""
    hours = results.cost
    if not hours:
        return ""
    several = "" if results.fresh is None else " (search and fresh seeds)"
    return (
        f"Cost so far: {device_time(sum(hours), results.device)}{several}, "
        f"median {device_time(statistics.median(hours), results.device)} per trial."
    )


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
        text = f"Search: {text} Fresh seeds: {len(results.fresh.table)} trials."
    if left_out:
        text += (
            f" Excluded, because the scheduler stopped some of their seeds: "
            f"{counted(left_out, 'configuration')}."
        )
    ends = results.comparable.step
    if ends.nunique() > 1:
        text += f" The compared trials ended at different steps, {ends.min():g} to {ends.max():g}."
    scored = (trial.curves.get(results.objective.metric) for trial in results.trials)
    by_window = not results.at_equal_amounts
    if by_window and any(
        curve and 0 in curve.steps[-results.objective.window :] for curve in scored
    ):
        text += (
            " Some scores include the evaluation before training: set a smaller objective.window."
        )
    return text
