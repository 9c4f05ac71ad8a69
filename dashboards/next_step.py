"""The decision of a comparison, and the one next step that every command and page recommends."""

import math
from dataclasses import dataclass

from dashboards import words
from dashboards.fresh_seeds import ARM_SEEDS, FRESH_SEEDS, MIN_SEEDS, MOST_SEEDS
from dashboards.results import Results
from dashboards.rounds import Rounds
from dashboards.statistics.checked_guards import state_of
from dashboards.statistics.difference import Difference
from dashboards.statistics.verdict import MIN_SPREAD, Tested, Undecided, Verdict
from dashboards.words import Name, device_time
from loptune.errors import joined
from loptune.terminal.table import counted

NO_GAIN_LEFT = "After correcting for selection, no improvement is left: search another region."
MORE_SEEDS = (
    "These seeds are too few to decide: run the best configuration and the baseline on at least "
    f"{FRESH_SEEDS} seeds."
)
FIX_FAILURES = "Fix what makes trials fail, then retry them."


@dataclass(frozen=True)
class Choice:
    """The configuration singled out by seeds that were not used for selection."""

    configuration: str | None  # None if a baseline that is a number is kept
    is_gain: bool  # False if the baseline is kept


@dataclass(frozen=True)
class NextStep:
    """The recommended next step."""

    text: str  # sentences, which contain the command
    command: str = ""  # command that takes this step; empty if there is none


def chosen(results: Results) -> Choice | None:
    """Return the configuration that the evidence singles out; None if it is undecided, or if its
    guards do not hold.
    """
    if results.arms:
        return _chosen_arm(results)
    fresh = results.fresh
    if fresh is not None and fresh.rounds is not None:
        choice = _chosen_in_rounds(fresh, fresh.rounds)
    else:
        choice = _chosen_by_verdict(results, _evidence(results))
    if choice is not None and choice.is_gain and results.not_guarded is not None:
        return None
    return choice


def _chosen_in_rounds(fresh: Results, rounds: Rounds) -> Choice | None:
    """Return the winner of a sequential confirmation, or the baseline if no finalist is better;
    None if this is not decided.
    """
    if rounds.winner is not None:
        return Choice(rounds.winner.configuration, is_gain=True)
    if rounds.outcome == "not better":
        return Choice(fresh.compared_with, is_gain=False)
    return None


def _evidence(results: Results) -> Verdict | None:
    """Return the verdict on seeds that were not used for selection; None if there is none."""
    if results.fresh_verdict is not None:
        return results.fresh_verdict
    return results.verdict if results.nothing_chosen else None


def _chosen_by_verdict(results: Results, judged: Verdict | None) -> Choice | None:
    """Return the configuration that is shown to be better, or the baseline if none is."""
    if judged is None or judged.is_baseline_alone:
        return None
    if isinstance(judged, Tested) and judged.claim == "evidence":
        return Choice(judged.best, is_gain=True)
    if words.keeps_baseline(judged, results.objective.worthwhile):
        return Choice(None if results.against is not None else judged.baseline, is_gain=False)
    return None


def chosen_rule(results: Results) -> str | None:
    """Return the rule that completed fresh seeds select: the best rule that is shown to beat the
    first rule and whose guards hold, or the first rule if all others are shown to be worse; else
    None.
    """
    compared = results.tuned_rules.compared
    if not results.fresh_finished or not compared:
        return None
    for result in compared:  # the best first
        if result.better and state_of(results.guards_of_arm(result.rule)) == "holds":
            return result.rule
    if all(result.worse for result in compared):
        return results.arms[0]
    return None


def _chosen_arm(results: Results) -> Choice | None:
    """Return the setting of the rule that fresh seeds select; None if they select no rule, and for
    runs of other programs.
    """
    rule = chosen_rule(results)
    if rule is None or results.fresh is None or not results.name:
        return None
    tried = dict.fromkeys(trial.configuration for trial in results.fresh.trials)
    setting = next(each for each in tried if results.tuned_rules.arm_of[each] == rule)
    return Choice(setting, is_gain=rule != results.arms[0])


def next_step(results: Results, name: Name | None = None) -> NextStep | None:
    """Return the recommended next step; None if nothing is recommended.

    Args:
        results: results of a sweep, or of runs of other programs.
        name: returns the display name of a configuration, as the surrounding text uses it.
    """
    name = results.names() if name is None else name
    if results.arms:
        return _after_tuning(results)
    if results.comparable.empty:
        return None
    choice = chosen(results)
    if choice is not None:
        return _adopt(results, choice)
    guarded = _after_guards(results)
    if guarded is not None:
        return guarded
    fresh = results.fresh
    if fresh is not None and fresh.rounds is not None:
        return _after_rounds(results, fresh.rounds) if fresh.rounds.results else None
    if fresh is not None and fresh.name:
        return _after_confirmation(results, fresh, name)
    judged = results.fresh_verdict
    if judged is not None and not judged.is_baseline_alone:
        return _confirm_again(results, judged, name)
    if results.verdict is None:
        return NextStep("Next: run the baseline on the same seeds.")
    return _confirm(results, results.verdict, name)


def _after_confirmation(results: Results, fresh: Results, name: Name) -> NextStep:
    """Advise after a confirmation that chose nothing, or before it has ended."""
    judged = results.fresh_verdict
    if judged is not None and not judged.is_baseline_alone:
        return _confirm_again(results, judged, name)
    if results.fresh_finished:
        return NextStep(f"Next: {FIX_FAILURES}")
    return _unfinished(fresh, "Let the confirmation finish.")


def _unfinished(sweep: Results, advice: str) -> NextStep:
    """Advise to let a sweep finish, with the command that continues it unless it is running."""
    if sweep.running:
        return NextStep(f"Next: {advice}")
    command = sweep.command("resume")
    return NextStep(f"Next: {advice} `{command}` continues it.", command)


def _after_guards(results: Results) -> NextStep | None:
    """Advise on a gain for which guards fail or are undecided. None if there is no such gain, or if
    more seeds are needed for the gain itself.
    """
    judged = results.not_guarded
    if judged is None:
        return None
    checked = results.checked_guards(judged.best)
    failed = [each.metric for each in checked if each.outcome == "fails"]
    if failed:
        return NextStep(
            "Next: keep the baseline, or decide that the gain is worth the loss on "
            f"{joined(failed)}."
        )
    undecided = [each.metric for each in checked if each.outcome == "undecided"]
    if undecided and judged.claim not in ("candidate", "too few seeds"):
        metrics = joined(undecided)
        return NextStep(
            "Next: run more seeds of this configuration and of the baseline, to decide on "
            f"{metrics}."
        )
    return None


def _adopt(results: Results, choice: Choice) -> NextStep:
    """Advise to train with the chosen configuration, or to keep the baseline."""
    advice = "train with it" if choice.is_gain else "keep the baseline"
    if not results.name:
        return NextStep(f"Next: {advice}.")
    command = results.command("export")
    return NextStep(f"Next: {advice}; `{command}` writes its configuration.", command)


def _after_tuning(results: Results) -> NextStep | None:
    """Advise on rules that were tuned separately; None if nothing is recommended."""
    if results.tuned_rules.compared:
        return _after_fresh_rules(results)
    return _before_fresh_rules(results)


def _before_fresh_rules(results: Results) -> NextStep | None:
    """Advise on separately tuned rules that are not compared on fresh seeds yet; None if they are
    compared on a grid.
    """
    if results.tuned_rules.grid is not None:
        return None
    if results.fresh_finished:
        return NextStep(f"Next: {FIX_FAILURES}")
    trials = len(results.arms) * ARM_SEEDS
    seeds = f"the best of every rule on {ARM_SEEDS} fresh seeds"
    if not results.name:
        judge = "then judge again with those runs as the second table"
        return NextStep(f"Next: run {seeds}, {judge}: {trials} trials.")
    if results.fresh is not None:
        return _unfinished(results.fresh, "Let the confirmation finish.")
    first = _before_confirming(results, f"Run {seeds}.")
    if first is not None:
        return first
    command = results.command("confirm")
    return NextStep(f"Next: `{command}` runs {seeds}: {trials} trials.", command)


def _after_fresh_rules(results: Results) -> NextStep | None:
    """Advise on separately tuned rules that are compared on fresh seeds; None before all fresh
    seeds have run, for runs of other programs, and if no rule has an interval.
    """
    compared = results.tuned_rules.compared
    base = results.arms[0]
    if not results.fresh_finished or not results.name:
        return None
    if all(result.interval is None for result in compared):
        return None
    rule = chosen_rule(results)
    if rule is None:
        command = results.command("export", "--baseline")
        advice = f"keep {base}, which no rule is shown to beat"
        if any(result.better for result in compared):
            advice = f"keep {base}: no rule that beats it is shown to satisfy its guards"
    else:
        command = results.command("export")
        advice = f"keep {base}" if rule == base else f"train with {rule}"
    return NextStep(f"Next: {advice}; `{command}` writes its best setting.", command)


def _before_confirming(results: Results, advice: str) -> NextStep | None:
    """Advise what must come before `sweep confirm`; None if a confirmation can start."""
    if results.running and not results.finished:
        return NextStep(f"Next: {advice} First let the sweep finish.")
    if not results.can_confirm:
        retry = ["--retry-failed"] if results.finished else []
        command = results.command("resume", *retry)
        return NextStep(f"Next: {advice} First finish the sweep: `{command}`.", command)
    return None


def _confirm(results: Results, judged: Verdict, name: Name) -> NextStep:
    """Advise after a search, or after an undecided comparison of listed configurations."""
    seeds = _fresh_seeds(judged)
    advice = _advice(judged, name)
    if seeds is not None and isinstance(judged, Undecided):
        advice = "Run the best configuration and the baseline on fresh seeds."
    if seeds is None or not results.name:
        return NextStep(f"Next: {advice}")
    first = _before_confirming(results, advice)
    if first is not None:
        return first
    command = results.command("confirm", "--finalists", "1", "--seeds", str(seeds))
    trials = 2 * seeds
    price = float(results.table.hours[results.table.state == "COMPLETE"].median())
    cost = ""
    if math.isfinite(price):
        cost = f", about {device_time(price * trials, results.device)}"
    rounds = "With --rounds it stops as soon as the result is clear."
    return NextStep(f"Next: {advice} Run `{command}`: {trials} trials{cost}. {rounds}", command)


def _too_few(judged: Tested) -> bool:
    """Return whether a gain is shrunk to nothing only because there are too few seeds and
    configurations to distinguish it from noise.
    """
    return judged.seeds < MIN_SEEDS and judged.comparisons < MIN_SPREAD


def _fresh_seeds(judged: Verdict) -> int | None:
    """Return how many fresh seeds a first confirmation needs; None if there is nothing to
    confirm.
    """
    if isinstance(judged, Undecided):
        return _seeds_of_undecided(judged)
    if judged.claim != "none":
        return _fresh_at_least(judged)
    if judged.improves and judged.confirmation_seeds is None and _too_few(judged):
        return FRESH_SEEDS
    return judged.confirmation_seeds if judged.improves else None


def _confirm_again(results: Results, judged: Verdict, name: Name) -> NextStep:
    """Advise after an undecided confirmation."""
    advice = _advice(judged, name)
    needed = _seeds_to_confirm(judged)
    if needed is None or not results.name:
        return NextStep(f"Next: {advice}")
    seeds = max(MIN_SEEDS, needed)
    command = results.command(
        "confirm", "--again", "--configurations", judged.best, "--seeds", str(seeds)
    )
    trials = f"{2 * seeds} trials, which are judged separately"
    return NextStep(f"Next: {advice} To do so: `{command}` ({trials}).", command)


def _seeds_to_confirm(judged: Verdict) -> int | None:
    """Return how many new seeds would decide a comparison; None if more seeds do not help."""
    if isinstance(judged, Undecided):
        return _seeds_of_undecided(judged)
    if judged.claim == "too few seeds":
        return _fresh_at_least(judged)
    if judged.improves:
        return judged.confirmation_seeds
    return judged.deciding_seeds


def _seeds_of_undecided(judged: Undecided) -> int | None:
    """Return how many seeds would make configurations with too few seeds comparable; None if the
    number of seeds is not the problem.
    """
    return FRESH_SEEDS if judged.why in ("one seed", "no shared seed") else None


def _fresh_at_least(judged: Tested) -> int:
    """Return the number of fresh seeds for a confirmation: the default, or more if the improvement
    needs more.
    """
    return max(FRESH_SEEDS, judged.confirmation_seeds or 0)


def _after_rounds(results: Results, rounds: Rounds) -> NextStep | None:
    """Advise after an undecided sequential confirmation; None while interim analyses are left."""
    if all(result.interval is None for result in rounds.last):
        return NextStep(f"Next: {words.no_spread()}")
    if rounds.outcome != "undecided" or not results.name:
        return None
    nearest: Difference = max(rounds.last, key=lambda result: result.gain)
    number = nearest.configuration
    seeds = str(2 * rounds.planned[-1])
    command = results.command("confirm", "--again", "--configurations", number, "--seeds", seeds)
    return NextStep(
        f"Next: keep the baseline, or run the nearest finalist, #{number}, on twice as many new "
        f"seeds: `{command}`.",
        command,
    )


def _advice(verdict: Verdict, name: Name) -> str:
    """Advise what to run after a verdict, without the command."""
    if isinstance(verdict, Undecided):
        return words.REMEDIES[verdict.why]
    if verdict.claim == "too few seeds":
        needed = _fresh_at_least(verdict)
        return (
            f"Run this configuration and the baseline on at least {needed} seeds: fewer than "
            f"{MIN_SEEDS} seeds cannot confirm an improvement."
        )
    if verdict.claim == "evidence":
        return "Confirm it on fresh seeds: the best of many scores is biased upward."
    if verdict.claim == "candidate":
        return (
            "Run it on fresh seeds: a search's own seeds give candidates, only fresh seeds give "
            "evidence."
        )
    if verdict.excludes(0.0):
        return "Keep the baseline, or search another region."
    if not verdict.improves:
        if verdict.deciding_seeds is None:
            return "Run more seeds, search another region, or keep the baseline."
        return (
            f"Run {counted(verdict.deciding_seeds, 'seed')} of this configuration and of the "
            "baseline to detect a difference of this size with 80% power. Or search another "
            "region, or keep the baseline."
        )
    # relative to the difference, because rounding rarely leaves exactly 0
    if verdict.shrunken / verdict.difference <= 1e-9:
        return MORE_SEEDS if _too_few(verdict) else NO_GAIN_LEFT
    if verdict.confirmation_seeds is None:
        return (
            f"After correcting for selection, an improvement of {verdict.shrunken:+.3g} is left, "
            f"which takes more than {MOST_SEEDS} seeds to detect: search another region."
        )
    return (
        f"Run only {name(verdict.best)} and {name(verdict.baseline)} on "
        f"{verdict.confirmation_seeds} fresh seeds. They detect {verdict.shrunken:+.3g}, the "
        "improvement left after correcting for selection, with 80% power."
    )
