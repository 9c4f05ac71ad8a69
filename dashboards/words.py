"""Build every sentence about a verdict from typed values; pages and commands add the command to
run.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dashboards.fresh_seeds import MIN_SEEDS
from dashboards.statistics.arm_table import ArmRow
from dashboards.statistics.blocks import Blocks
from dashboards.statistics.checked_guards import CheckedGuard
from dashboards.statistics.difference import Difference, Layout, Outcome
from dashboards.statistics.layouts import Pairing
from dashboards.statistics.levels import coverage, repeats_factor
from dashboards.statistics.peaks import PeakResult
from dashboards.statistics.tournament import (
    MIN_TRIALS,
    MIN_TRIALS_TWO_PARAMETERS,
    Refusal,
    RuleResult,
)
from dashboards.statistics.verdict import Tested, Undecided, Verdict, collapse_bound
from dashboards.trial import Mode, sign_of
from loptune.errors import joined, listed
from loptune.terminal.table import counted

Name = Callable[[str], str]  # returns the name of a configuration, given its number

_MOST_NAMED = 4  # maximum number of configurations listed in a sentence
_SMALLEST_P = 1e-4
_WHY = {
    "alone": "No other configuration has a score to compare with.",
    "no shared seed": "Without shared seeds, the difference cannot be distinguished from chance.",
    "one seed": "With 1 shared seed, the difference cannot be distinguished from chance.",
    "no spread": "Every seed shows exactly the same difference, so seed noise cannot be estimated. "
    "The setting may have no effect, or the scores may be too coarse.",
}
_LAYOUTS: Mapping[Layout, str] = {
    "paired": "On shared seeds",
    "partly paired": "On shared and on other seeds",
    "unpaired": "Without pairing, because fewer than half of the seeds are shared",
}
NOTHING_ENDED = "No configuration has finished yet."
NO_TRIALS = "The sweep has no trials yet."
NO_BASELINE = "no baseline is listed, and no configuration without AR and Lopti has finished"
OTHERS_WORSE = "every other configuration is worse"
REMEDIES = {
    "alone": "Run the other configurations.",
    "no shared seed": "Run the baseline and the best configurations on at least 3 seeds each.",
    "one seed": "Run the baseline and the best configurations on at least 3 seeds each.",
    "no spread": "Check that the setting and the seed reach the program. If they do, evaluate on "
    "more problems, or run more seeds.",
}
REFUSAL_TEXT: Mapping[Refusal, str] = {
    "few trials": f"estimating tuning variance takes at least {MIN_TRIALS} complete "
    "trials per rule",
    "smaller budget": "the baseline has fewer than half as many complete trials as the rule",
    "baseline tunes more": "the baseline tunes more parameters, so tuning leaves it "
    "further from its optimum",
    "few trials of two": "estimating the tuning variance of two parameters takes at least "
    f"{MIN_TRIALS_TWO_PARAMETERS} complete trials",
    "many parameters": "the tuning variance of three or more parameters cannot be estimated",
    "no spread": "it shares fewer than two fresh seeds with the baseline, or its "
    "differences on them are all equal",
}
_OUTCOME_TEXT: Mapping[Outcome, str] = {
    "better": "is better than the baseline",
    "not better": "is shown to improve by less than {:g}",
    "worse": "is worse than the baseline",
    "fails a guard": "fails a guard",
    "undecided": "is undecided",
}


def number(value: float, digits: int = 3) -> str:
    """Format a number with ``digits`` significant digits, without an exponent if that is readable;
    ``none`` for NaN.
    """
    if value != value:
        return "none"
    if value and (abs(value) >= 10**5 or abs(value) < 10**-4):
        return f"{value:.{digits - 1}e}"
    if value == int(value):
        return str(int(value))
    if abs(value) >= 10**digits:
        return f"{value:.0f}"
    return f"{value:#.{digits}g}".rstrip(".")


def signed(value: float) -> str:
    """Format a difference with a number of digits that depends on its size: +626, +20.5, +0.100,
    +0.0052.
    """
    size = abs(value)
    if size >= 10**5 or 0 < size < 0.0005:
        return f"{value:+.1e}"
    if size >= 100:
        return f"{value:+.0f}"
    if size >= 10:
        return f"{value:+.1f}"
    return f"{value:+.4f}" if 0 < size < 0.0095 else f"{value:+.3f}"


def device_time(hours: float, device: str) -> str:
    """Format device time in hours, or in minutes below one hour."""
    if hours < 1:
        return f"{number(hours * 60, 2)} {device}-minutes"
    return f"{number(hours)} {device}-hours"


def percent_interval(covers: float) -> str:
    """Return the name of an interval with its coverage."""
    return f"{100 * covers:.4g}% interval"


def between(interval: tuple[float, float], covers: float | None = None) -> str:
    """Format an interval with its coverage (default: the one without earlier confirmations)."""
    return f"{percent_interval(covers or coverage())} {to(interval)}"


def to_bounds(interval: tuple[float, float]) -> str:
    """Format the bounds of a mean."""
    low, high = interval
    return f"{number(low)} to {number(high)}"


def to(interval: tuple[float, float]) -> str:
    """Format the bounds of a difference."""
    low, high = interval
    return f"{signed(low)} to {signed(high)}"


def gain(verdict: Verdict, kind: str = "seed") -> str:
    """Format a difference from the baseline with its interval and number of seeds."""
    seeds = counted(verdict.seeds, kind) if verdict.seeds else "no shared seed"
    if verdict.layout == "against a number":
        seeds = counted(verdict.runs[0], "run")
    elif verdict.layout != "paired":
        seeds = f"{verdict.runs[0]} against {counted(verdict.runs[1], 'run')}"
    failed = verdict.failed.get(verdict.best, 0) + verdict.failed.get(verdict.baseline, 0)
    if failed:
        seeds += f", {failed} failed"
    if isinstance(verdict, Tested):
        seeds = f"{between(verdict.interval, verdict.coverage)}, {seeds}"
    return f"{signed(verdict.difference)} ({seeds})"


def searched(verdict: Verdict, name: Name) -> str:
    """State the result on the search's own seeds."""
    base = name(verdict.baseline)
    best = name(verdict.best)
    claim = verdict.claim if isinstance(verdict, Tested) else "none"
    if claim == "evidence":
        return (
            f"Evidence of an improvement over the baseline {base}, not confirmed on fresh seeds. "
            f"{best}: {gain(verdict)}."
        )
    if claim == "candidate":
        return (
            f"A candidate to beat the baseline {base}. Not evidence yet, because its seeds "
            f"guided the search. {best}: {gain(verdict)}."
        )
    if isinstance(verdict, Tested) and verdict.seeds >= MIN_SEEDS and verdict.excludes(0.0):
        worse_ones = f"{best} is worse"
        if verdict.comparisons > 1:
            worse_ones = f"{OTHERS_WORSE}. The closest is {best}"
        return f"Nothing beats the baseline {base}; {worse_ones}: {gain(verdict)}."
    nearest = "Best candidate" if verdict.improves else "Closest"
    return (
        f"No evidence that anything beats the baseline {base}. {nearest} {best}: {gain(verdict)}."
    )


def confirmed(
    verdict: Verdict, name: Name, worthwhile: float = 0.0, kind: str = "fresh seed"
) -> str:
    """State the result on seeds that were not used for selection; ``kind`` names these seeds.

    The baseline is kept only if the intervals exclude a worthwhile improvement.
    """
    best = name(verdict.best)
    base = f"the baseline {name(verdict.baseline)}"
    if verdict.layout == "against a number":
        base = name(verdict.baseline)
    gained = gain(verdict, kind)
    if isinstance(verdict, Undecided):
        return f"Undecided: {best} compared with {base}: {gained}."
    if verdict.claim == "evidence":
        return f"Confirmed: {best} beats {base}: {gained}."
    if verdict.claim == "too few seeds":
        return (
            f"Undecided: {best} improves on {base} by more than seed noise explains, but fewer "
            f"than {MIN_SEEDS} seeds cannot confirm an improvement: {gained}."
        )
    if keeps_baseline(verdict, worthwhile):
        if verdict.largest_gain <= 0 and verdict.comparisons == 1:
            return f"Keep {base}: {best} is worse: {gained}."
        if verdict.largest_gain <= 0:
            finding = OTHERS_WORSE
        else:
            finding = f"no other configuration improves by {worthwhile:g} or more"
        return f"Keep {base}: {finding}. {best}: {gained}."
    return (
        f"Undecided: seed noise could explain the difference between {best} and {base}: {gained}. "
        f"These seeds detect an improvement of {number(verdict.detectable, 2)} or more."
    )


def keeps_baseline(verdict: Verdict, worthwhile: float) -> bool:
    """Return whether the intervals exclude every worthwhile improvement."""
    if not isinstance(verdict, Tested) or verdict.seeds < MIN_SEEDS:
        return False
    return verdict.excludes(worthwhile)


def repeated(earlier_confirmations: int) -> str:
    """State how a confirmation that follows others is judged; empty for the first."""
    if not earlier_confirmations:
        return ""
    factor = repeats_factor(earlier_confirmations)
    return (
        f"This is confirmation {earlier_confirmations + 1} of these finalists, on new seeds. The "
        "earlier scores are left out, because they led to this confirmation. P-values are "
        f"multiplied by {factor}, and intervals have {100 * coverage(factor):.4g}% coverage "
        f"instead of {100 * coverage():.4g}%: all confirmations together report a false "
        "improvement in less than 10% of cases."
    )


def score_direction(metric: str, mode: Mode) -> str:
    """Return the name of the score and which direction is better."""
    better = "larger" if sign_of(mode) > 0 else "smaller"
    return f"Score: {metric} ({better} is better)."


def guard(checked: CheckedGuard) -> str:
    """State what the seeds show about a guard."""
    verb = {"holds": "holds", "fails": "fails", "undecided": "is undecided"}[checked.outcome]
    if checked.found is None:
        return f"{checked.metric} {verb}: no score to compare"
    measured = signed(checked.found.measured(checked.sign) + 0.0)  # avoids -0
    interval = checked.found.measured_interval(checked.sign)
    within = ""
    if interval is not None:
        covers = checked.found.coverage
        # an interim analysis has no p value, and its bounds have no common coverage
        shown_interval = between(interval, covers) if checked.found.p is not None else to(interval)
        within = f"{shown_interval}, "
    elif checked.found.seeds > 1 and checked.found.opposed_gain is None:
        within = "exactly equal on every seed, so noise cannot be estimated, "
    better = "larger" if checked.sign > 0 else "smaller"
    return (
        f"{checked.metric} {verb}: {measured} ({within}margin {checked.margin:g}, {better} is "
        "better)"
    )


def guards(checked: Sequence[CheckedGuard], name: str) -> str:
    """State all guards of a configuration; empty without guards."""
    if not checked:
        return ""
    text = "; ".join(map(guard, checked))
    return (
        f"Guards of {name}: {text}. Because all of them must hold, each is tested at the full "
        "significance level, without a correction for their number."
    )


def not_guarded(verdict: Verdict, checked: Sequence[CheckedGuard], name: Name) -> str:
    """State a gain whose guards do not all hold."""
    base = name(verdict.baseline)
    best = name(verdict.best)
    failed = [each for each in checked if each.outcome == "fails"]
    if failed:
        losses = []
        for each in failed:
            assert each.found is not None
            losses.append(f"{each.metric} by {number(abs(each.found.gain))}")
        return (
            f"Better, but worse on {joined(losses)}: {best} compared with the baseline "
            f"{base}: {gain(verdict)}."
        )
    open_ones = [each.metric for each in checked if each.outcome == "undecided"]
    return (
        f"Undecided: {best} is better than the baseline {base}: {gain(verdict)}. But these seeds "
        f"do not rule out that it is worse on {joined(open_ones)} by more than the margin."
    )


def unequal_costs(
    ratios: Mapping[str, Mapping[str, float]], place: str, name: Name, *, advised: bool
) -> str:
    """State which configurations have costs that differ from the baseline's; empty if there are
    none.

    Args:
        ratios: configuration -> cost column -> its amount divided by the baseline's.
        place: column along which they are compared; empty without evaluations.
        name: returns the name of a configuration, as the surrounding text uses it.
        advised: whether to mention the option that compares at an equal amount.
    """
    if not ratios:
        return ""
    named = []
    for configuration, columns in ratios.items():
        times = [f"{ratio:.2g} times the {plural(column)}" for column, ratio in columns.items()]
        named.append(f"{name(configuration)} used {joined(times)} of the baseline")
    unequal = [column for columns in ratios.values() for column in columns]
    text = listed(named, _MOST_NAMED, "; ")
    if place:
        start = "Not at" if place in unequal else "At"
        text = f"{start} equal {plural(place)}: {text}"
    if not advised:
        return f"{text}."
    column = place if place in unequal else unequal[0]
    return f"{text}. --axis {column} compares at equal {plural(column)}."


def plural(column: str) -> str:
    """Return the plural of a column's name: ``steps`` for ``step``, other names unchanged."""
    return "steps" if column == "step" else column


def layouts(
    rows: Sequence[ArmRow],
    pairing: Pairing | None,
    name: Name,
    *,
    blocks: bool = True,
    seeded: bool = True,
) -> str:
    """State how arms were compared, and why; empty for a sweep, in which every configuration runs
    every seed. ``seeded`` is False for runs without seeds, which are distinguished only by numbers.
    """
    compared = [row for row in rows if row.layout is not None]
    if pairing is None or not compared or compared[0].layout == "against a number":
        return ""
    if compared[0].layout == "by task":
        return "Compared within each task; the differences are averaged over the tasks."
    if pairing == "paired":
        return "Compared seed by seed, as requested (--paired)."
    if pairing == "unpaired":
        return "Compared without pairing by seed, as requested (--unpaired)."
    kinds = {row.layout for row in compared}
    if kinds == {"paired"} and len(compared) == 1 and not blocks:
        return (
            "Compared on the same seeds by Welch's test, without pairing, because it is unknown "
            "whether a seed has the same effect on both scores. --paired compares seed by seed."
        )
    if kinds == {"paired"}:
        lacking = any(row.missing for row in rows)
        shared = "share seeds" if lacking else "have the same seeds"
        return f"Compared seed by seed, because the configurations {shared}."
    if kinds == {"unpaired"} and not seeded:
        return "Compared without pairing (Welch's test), because the runs have no seeds."
    if kinds == {"unpaired"}:
        return (
            "Compared without pairing by seed (Welch's test), because fewer than half of the seeds "
            "are shared; seeds only label the runs. --paired compares shared seeds only."
        )
    parts = []
    for kind, text in _LAYOUTS.items():
        names = [name(row.configuration) for row in compared if row.layout == kind]
        if names:
            parts.append(f"{text}: {listed(names, _MOST_NAMED)}")
    return f"Pairing depends on the shared seeds. {'. '.join(parts)}."


def runs(rows: Sequence[ArmRow], name: Name) -> str:
    """State how many runs of each configuration are missing or failed; empty if there are none."""
    missing_runs = {row.configuration: row.missing for row in rows}
    missing = _counts("Missing, excluded", missing_runs, name)
    failed_runs = {row.configuration: row.failed for row in rows}
    failed = _counts("Failed, counted against every claim", failed_runs, name)
    return f"{missing} {failed}".strip()


def not_compared(rows: Sequence[ArmRow], name: Name) -> str:
    """State why some arms with successful runs are not compared, if others are; empty if all are.

    If no arm is compared, the reason is stated with the verdict.
    """
    if all(row.found is None for row in rows):
        return ""
    named = []
    for row in rows:
        if not row.is_baseline and row.found is None and row.failed < row.runs:
            named.append(name(row.configuration))
    if not named:
        return ""
    return (
        f"Not compared: {listed(named, _MOST_NAMED)}, because fewer than 2 seeds have a successful "
        "run in both the configuration and the baseline."
    )


def _counts(what: str, counts: Mapping[str, int], name: Name) -> str:
    """State how many runs of a kind, such as failed runs, each configuration has; empty if there
    are none.
    """
    named = [f"{name(number)} ({count})" for number, count in counts.items() if count]
    if not named:
        return ""
    return f"{what}: {counted(sum(counts.values()), 'run')}, {listed(named, _MOST_NAMED)}."


def worse(rows: Sequence[ArmRow], name: Name) -> str:
    """List the arms that are shown to be worse than the baseline; empty if there are none."""
    named = []
    for row in rows:
        if row.outcome == "worse" and row.interval is not None:
            interval = between(row.interval, row.coverage)
            named.append(f"{name(row.configuration)} {signed(row.difference)} ({interval})")
    if not named:
        return ""
    return f"Worse than the baseline: {listed(named, _MOST_NAMED, '; ')}."


def not_worse(rows: Sequence[ArmRow], margin: float, name: Name) -> str:
    """State which arms are shown not to be worse than the baseline by a margin."""
    shown_to_be = []
    others = []
    for row in rows:
        if row.outcome in ("better", "not worse"):
            shown_to_be.append(name(row.configuration))
    for row in rows:
        if row.outcome in ("worse", "undecided"):
            others.append(name(row.configuration))
    if not shown_to_be:
        return f"No configuration is shown to be not worse by {margin:g}."
    text = f"Not worse than the baseline by {margin:g} or more: {', '.join(shown_to_be)}."
    if others:
        text += f" Not shown for {', '.join(others)}."
    return text


def reason(verdict: Verdict) -> str:
    """State the evidence behind a verdict."""
    if isinstance(verdict, Undecided):
        why = _WHY[verdict.why]
        if verdict.why == "one seed" and verdict.layout != "paired":
            why = (
                "With 1 run of a configuration, the difference cannot be distinguished from chance."
            )
        return why + _more_seeds(verdict)
    tested = (
        f"{between(verdict.interval, verdict.coverage)}, "
        f"one-sided p = {max(verdict.p_value, _SMALLEST_P):.2g}, "
        f"corrected for {counted(verdict.comparisons, 'comparison')}, "
        f"{_runs_of(verdict)}"
    )
    if verdict.claim == "too few seeds":
        return (
            f"The improvement is larger than seed noise explains ({tested}), but fewer than "
            f"{MIN_SEEDS} seeds cannot confirm it."
        )
    if verdict.claim == "evidence":
        return f"The improvement is larger than seed noise explains: {tested}."
    if verdict.claim == "candidate":
        return (
            f"The improvement is larger than seed noise explains ({tested}), but these seeds "
            "guided the search."
        )
    return f"No evidence of an improvement: {tested}."


def _runs_of(verdict: Verdict) -> str:
    """Format how many seeds or runs a difference rests on."""
    if verdict.layout == "against a number":
        return counted(verdict.runs[0], "run")
    if verdict.layout == "paired":
        return counted(verdict.seeds, "seed")
    return f"{verdict.runs[0]} against {counted(verdict.runs[1], 'run')}, {verdict.layout}"


def _more_seeds(verdict: Verdict) -> str:
    """State how many seeds would decide a difference as large as the measured one."""
    if verdict.deciding_seeds is None:
        return ""
    return (
        f" {counted(verdict.deciding_seeds, 'seed')} per configuration would detect a difference "
        "of this size with 80% power."
    )


def noise(verdict: Verdict, name: Name) -> str:
    """State the seed noise, the detectable improvement, and the caveats."""
    if isinstance(verdict, Undecided):
        return ""
    sentences = []
    if verdict.by_problem:
        sentences.append("No variation between seeds is detected beyond evaluation noise.")
    sentences.append(
        f"The standard deviation between seeds is {number(verdict.sd, 2)}. "
        f"With {_runs_of(verdict)}, an improvement of {number(verdict.detectable, 2)} "
        "would be detected with 80% power, if all configurations are equally noisy."
    )
    claimed_seeds = verdict.seeds if verdict.claim != "none" else 0
    sentences.append(caveats(verdict, verdict.failed, claimed_seeds, name))
    return " ".join(sentences).strip()


def caveats(verdict: Verdict, failed: Mapping[str, int], seeds: int, name: Name) -> str:
    """State the caveats of a gain: a mean that few seeds determine, collapse that ``seeds`` seeds
    cannot exclude, failed seeds.
    """
    sentences = []
    if isinstance(verdict, Tested) and verdict.driven_by_few_seeds:
        sentences.append(
            f"The median difference over seeds is {signed(verdict.median)}: a few seeds determine "
            "the mean."
        )
    if seeds:
        sentences.append(hidden(seeds))
    if failed:
        sentences.append(failures(failed, name))
    return " ".join(sentences)


def blocks(known: Blocks) -> str:
    """State how seeds were treated, and how that was known before the compared scores; empty if it
    was not known.
    """
    if known.how == "declared":
        return (
            "Seeds are treated as blocks, as the program declares: on one seed every configuration "
            "has the same problems in the same order and the same initial model."
        )
    if known.how != "learned" or known.correlation is None or known.interval is None:
        return ""
    treated = "treated as blocks" if known.known else "not treated as blocks"
    low, high = known.interval
    return (
        f"Seeds are {treated}: in the search, scores of two configurations on one seed have a "
        f"correlation of {known.correlation:.2f} ({percent_interval(coverage())} {low:.2f} to "
        f"{high:.2f})."
    )


def hidden(seeds: int) -> str:
    """State the collapse rate that this many seeds cannot exclude."""
    return (
        f"{counted(seeds, 'seed')} cannot exclude a collapse rate of up to "
        f"{collapse_bound(seeds):.0%} (95% bound)."
    )


def failures(failed: Mapping[str, int], name: Name = str) -> str:
    """State how failed seeds are scored; empty if none failed."""
    if not failed:
        return ""
    named = [f"{name(number)} ({count})" for number, count in failed.items()]
    return (
        "Differences are between successful runs. For the intervals, failed runs get the worst or "
        "the best score of all runs, whichever opposes the claim. "
        f"Failed: {listed(named, _MOST_NAMED)}."
    )


def no_spread() -> str:
    """State why seeds with equal differences cannot decide, and what to check."""
    return f"{_WHY['no spread']} {REMEDIES['no spread']}"


def bounds(result: Difference) -> str:
    """Format a finalist's gain with its bounds."""
    if result.interval is None:
        return signed(result.gain)
    low, high = map(signed, result.interval)
    return f"{signed(result.gain)} ({low} to {high})"


def interim_result_text(
    name: str, result: Difference, worthwhile: float, checked: Sequence[CheckedGuard] = ()
) -> str:
    """State the decision on a finalist after its latest interim analysis, with its guards."""
    decided = _OUTCOME_TEXT[result.outcome].format(worthwhile)
    text = f"{name} {decided} after {counted(result.seeds, 'seed')}: {bounds(result)}"
    if not checked:
        return text
    return f"{text}; guards: {', '.join(map(guard, checked))}"


def rule_bounds(rule: RuleResult) -> str:
    """Format a rule's difference with its interval."""
    if rule.interval is None:
        return f"{signed(rule.difference)}, not compared: {refusal(rule)}"
    return f"{signed(rule.difference)}, {between(rule.interval, rule.found.coverage)}"


def refusal(rule: RuleResult) -> str:
    """State why a rule is not compared with the baseline; empty if it is."""
    return "" if rule.refusal is None else REFUSAL_TEXT[rule.refusal]


def rules(results: Sequence[RuleResult], baseline: str) -> str:
    """State which rules, each at its own best, beat the baseline's rule on fresh seeds, and which
    are worse.
    """
    not_compared = [rule for rule in results if rule.interval is None]
    compared = [rule for rule in results if rule.interval is not None]
    better = [rule for rule in compared if rule.better]
    worse = [rule for rule in compared if rule.worse]
    undecided = [rule for rule in compared if not rule.better and not rule.worse]
    sentences = [f"{rule.rule} beats {baseline} by {rule_bounds(rule)}" for rule in better]
    rest = "no other" if better else "none"
    if undecided:
        sentences.append(f"{rest} {_undecided_sentence(undecided, baseline)}")
    elif worse:
        sentences.append(f"{rest} beats {baseline} at its best")
    sentences += [f"{rule.rule} is worse: {rule_bounds(rule)}" for rule in worse]
    sentences += [f"{rule.rule} {rule_bounds(rule)}" for rule in not_compared]
    text = f"Rules at their own best, on fresh seeds: {'; '.join(sentences)}."
    if len(not_compared) == len(results):
        return text
    return (
        f"{text} Intervals are corrected for {counted(len(results), 'comparison')} and "
        "include tuning variance."
    )


def _undecided_sentence(undecided: Sequence[RuleResult], baseline: str) -> str:
    """State that these rules are not shown to be better, with the one that comes nearest."""
    nearest = max(undecided, key=lambda rule: rule.found.gain)
    return (
        f"is shown to beat {baseline} at its best (the nearest is {nearest.rule}: "
        f"{rule_bounds(nearest)})"
    )


def peaks(results: Sequence[PeakResult], parameter: str, shared: str) -> str:
    """State each rule's difference from the first: with both at one value of the parameter, and
    with each at its own peak. No rule is called better: intervals of fitted peaks exclude 0 too
    often if the peaks are equal, see `research/fitted_peaks.py`.
    """
    sentences = []
    for result in results[1:]:
        at_same = result.at_same
        at_best = result.at_best
        assert at_same is not None
        best = (
            "not compared at its best, because one of the two rules has no peak within the "
            "five values around its best"
        )
        if at_best is not None:
            best = f"{signed(at_best.mean)} each at its best ({between(at_best.interval)})"
        same = (
            f"{signed(at_same.mean)} with both at {parameter} {shared} "
            f"({between(at_same.interval)})"
        )
        sentences.append(f"{result.rule} {best}, {same}")
    return f"On one grid, compared with {results[0].rule}: {'; '.join(sentences)}."


def changes(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """List the settings in which a configuration differs from the baseline."""
    return ", ".join(f"{name} {value} (baseline {base})" for name, (value, base) in changed.items())
