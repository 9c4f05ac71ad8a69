"""Update rules over all confirmed sweeps: the gain of each on fresh seeds, and what a new setting may expect."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dashboards.pictures.judged import baseline, changed_from_baseline, comparable, judge_fresh
from dashboards.pictures.theme import MUTED, Picture, add_points, figure, label_rows, signed, spread
from dashboards.pictures.tournament import fresh_standings
from dashboards.statistics.dunnett import LEVEL
from dashboards.statistics.random_effects import MIN_SETTINGS, Summary, random_effects
from dashboards.sweep import Sweep
from trainer.config.variants import short_names, shown

_FEW = 10  # settings below which the spread between them is known roughly at best
_HEADINGS = ("model", "task", "sweep", "differs in", "seeds", "gain", "low", "high")


@dataclass(frozen=True)
class Measured:
    """A rule against a baseline's on the fresh seeds of one sweep; without numbers where it is left out."""

    sweep: str
    model: str
    task: str
    metric: str
    rule: str
    baseline: str
    differs: str = ""  # every setting in which the two differ
    seeds: int = 0
    gain: float = math.nan  # positive is better
    error: float = math.nan  # standard error of the gain
    interval: tuple[float, float] = (math.nan, math.nan)  # each bound holds with 95 %
    left_out: str = ""  # why it does not count


@dataclass(frozen=True)
class Evidence:
    """A rule against a baseline in all settings, the one with the best gain first."""

    rule: str
    baseline: str
    metric: str
    measured: Sequence[Measured]
    better: int  # settings in which it is, by more than the noise between seeds
    worse: int
    summary: Summary | None  # None below three settings

    @property
    def sentence(self) -> str:
        """What all settings together say."""
        count = len(self.measured)
        said = (
            f"In {self.better} of {count} settings {self.rule} is shown to be better than {self.baseline}, in "
            f"{self.worse} worse; of rules without any effect {count * LEVEL:.2g} of each are expected by chance."
        )
        if self.summary is None:
            return f"{said} {count} of at least {MIN_SETTINGS} settings: too few for a summary."
        mean, (low, high) = self.summary.mean, self.summary.prediction
        said += (
            f" Mean over settings {signed(mean.value)} (90 % interval {signed(mean.low)} to {signed(mean.high)}); in "
            f"a new setting the true difference lies between {signed(low)} and {signed(high)} (90 % prediction "
            f"interval)."
        )
        few = f" {count} settings are few: how much they differ is hardly known, and the intervals are wide."
        return said + few * (count < _FEW)


def measured_in(sweep: Sweep) -> list[Measured]:
    """Every rule that a sweep tried against that of its baseline; by the finalist of it that the search liked best.

    Of several finalists of a rule, fresh seeds must not choose: the best of them would be too good.
    """
    fresh, (model, task) = sweep.confirmation, sweep.setting
    known = sweep.trials[sweep.trials.state != "FAIL"]  # a trial that never started recorded no rule
    of = dict(zip(known.configuration, known.variant, strict=True))
    metric = "/".join(sweep.objective.metric.split("/")[:2])
    nothing = Measured(sweep.name, model, task, metric, "", "")
    if fresh is None:
        return [replace(nothing, left_out="not confirmed on fresh seeds")]
    base, numbers = baseline(fresh), dict(zip(fresh.trials.label, fresh.trials.configuration, strict=True))
    if base is None or numbers[base] not in of:
        return [replace(nothing, left_out="its baseline has no score on fresh seeds")]
    nothing = replace(nothing, baseline=str(of[numbers[base]]))
    means = sweep.complete().groupby("configuration").score.mean() * (1 if sweep.objective.mode == "max" else -1)
    ranked = sorted(set(comparable(fresh).label), key=lambda label: -means.get(numbers[label], -math.inf))
    chosen = {str(of[numbers[label]]): label for label in reversed(ranked)}
    rules = [rule for rule in dict.fromkeys(map(str, of.values())) if rule != nothing.baseline]
    if not rules:
        return [replace(nothing, left_out="it tried no other rule than its baseline's")]
    return [
        _judged(sweep, fresh, chosen[rule], replace(nothing, rule=rule))
        if rule in chosen
        else replace(nothing, rule=rule, left_out="tried, and not among the finalists")
        for rule in rules
    ]


def _judged(sweep: Sweep, fresh: Sweep, label: str, nothing: Measured) -> Measured:
    found = judge_fresh(fresh, sweep, label)
    if found is None or found.interval is None or found.deviation is None:
        return replace(nothing, left_out=found.reason if found else "its baseline has no score on fresh seeds")
    called, interval = short_names(fresh.varied), found.interval
    if sweep.arms:  # rules at their own best: the luck of tuning counts
        (number,) = set(fresh.trials[fresh.trials.label == label].configuration)
        (arm,) = set(sweep.trials[sweep.trials.configuration == number].arm)
        told = next(one.interval for one in fresh_standings(sweep) if one.rule == arm)
        if told is None:
            return replace(nothing, left_out="too few tuning trials to tell the luck of tuning")
        interval = told
    sign, (low, high) = (1, interval) if sweep.objective.mode == "max" else (-1, interval[::-1])
    changed = changed_from_baseline(fresh, label).items()
    return replace(
        nothing,
        differs=", ".join(f"{called[name]} {shown(own)} (not {shown(other)})" for name, (own, other) in changed),
        seeds=found.seeds,
        gain=sign * found.difference,
        error=found.deviation * math.sqrt(2 / found.seeds),
        interval=(sign * low, sign * high),
    )


def gathered(sweeps: Sequence[Sweep]) -> tuple[list[Evidence], list[Measured]]:
    """The evidence on every rule, that with the most settings first, and what does not count.

    A model with a task is one setting, however many sweeps measured it: the one with the most fresh seeds counts.
    """
    several: dict[tuple[str, str, str], dict[tuple[str, str], Measured]] = {}
    left = []
    for one in sorted((one for sweep in sweeps for one in measured_in(sweep)), key=lambda one: -one.seeds):
        settings = several.setdefault((one.rule, one.baseline, one.metric), {}) if not one.left_out else {}
        first = settings.setdefault((one.model, one.task), one)
        if one.left_out or first is not one:
            left.append(one if one.left_out else replace(one, left_out=f"{first.sweep} has as many seeds or more"))
    found = []
    for (rule, base, metric), settings in several.items():
        best_first = sorted(settings.values(), key=lambda one: -one.gain)
        better = sum(one.interval[0] > 0 for one in best_first)
        worse = sum(one.interval[1] < 0 for one in best_first)
        summary = random_effects([one.gain for one in best_first], [one.error for one in best_first])
        found.append(Evidence(rule, base, metric, best_first, better, worse, summary))
    return sorted(found, key=lambda one: -len(one.measured)), left


def forest(evidence: Evidence, key: str) -> Picture:
    """A row a setting with its interval; below them the mean over settings, and where a new setting's gain lies."""
    rows = [(f"{one.task}, {one.model.rpartition('/')[2]}", one.gain, *one.interval) for one in evidence.measured]
    shades = ["#3d85c6"] * len(rows)
    if evidence.summary is not None:
        mean, (low, high) = evidence.summary.mean, evidence.summary.prediction
        rows += [("mean over settings", mean.value, mean.low, mean.high), ("a new setting", mean.value, low, high)]
        shades += ["#e07b00", "#8b93a1"]
    drawing = figure(f"gain in {evidence.metric} over {evidence.baseline}", height=90 + 52 * len(rows))
    drawing.add_vline(x=0, line={"color": MUTED, "width": 1, "dash": "dot"})
    for (name, gain, low, high), shade in zip(rows, shades, strict=True):
        note = html.escape(f"{name}: {signed(gain)}, 90 % interval {signed(low)} to {signed(high)}")
        marker, bar = {"color": shade, "size": 12, "symbol": "diamond"}, spread(gain, low, high)
        add_points(drawing, [gain], [name], note, marker=marker, error_x=bar)
    label_rows(drawing, [name for name, *_ in reversed(rows)])
    table = [
        [one.model, one.task, one.sweep, one.differs, one.seeds, one.gain, *one.interval] for one in evidence.measured
    ]
    title = f"{evidence.rule} against {evidence.baseline}: {evidence.metric}"
    return Picture(key, title, evidence.sentence, (drawing,), (_HEADINGS, table))
