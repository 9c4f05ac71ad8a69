"""Guards of a confirmation in rounds, read from the records of its trials."""

import math
from collections.abc import Hashable, Mapping, Sequence

from dashboards.sources.scores import guards_of
from dashboards.statistics.checked_guards import CheckedGuard
from dashboards.statistics.difference import Difference
from dashboards.statistics.group_sequential import Design
from dashboards.statistics.rounds import interim_results
from dashboards.statistics.seed_noise import Scores
from dashboards.trial import sign_of
from loptune.files import Record, read_records
from loptune.yaml_document import nearest
from sweep.record.sweep_record import SweepRecord
from sweep.space.scoring import axes, guards_by
from sweep.space.spec import SweepSpec
from trainer.run_folder import RunFolder

ByMetric = Mapping[str, Difference]
_OF_RECORD = ("step", "time", "attempt")  # keys of a record that are not metrics
_NO_METRICS = ("time/", "final/")  # prefixes of what loptune adds to the program's metrics


def unlogged_guards(spec: SweepSpec, records: Sequence[Record]) -> dict[str, str]:
    """Return guard metric -> a hint on similar metrics, for guards that a finished trial has not
    logged.
    """
    logged = {name for record in records for name in record}
    names = {name for name in logged if not name.startswith(_NO_METRICS)}.difference(_OF_RECORD)
    return {
        metric: nearest(metric, names).replace("valid:", "logged:")
        for metric in spec.objective.guarded
        if metric not in logged.union(axes(spec))
    }


def missed_guard(metric: str, hint: str) -> str:
    """Return the sentence that reports a guard whose metric is not logged."""
    return f"The guard {metric} stays undecided, because its metric is not logged; {hint}"


def missed_guards(sweep: SweepRecord) -> list[str]:
    """Return a sentence for each guard whose metric no complete trial has logged."""
    if not sweep.spec.objective.guarded:
        return []
    missed: list[dict[str, str]] = []
    for trial in sweep.results:
        if trial.state == "COMPLETE":
            records = read_records(RunFolder(sweep.folder.trial(trial.name)).metrics)
            missed.append(unlogged_guards(sweep.spec, records))
    if not missed:
        return []
    return [
        missed_guard(metric, hint)
        for metric, hint in missed[0].items()
        if all(metric in of_trial for of_trial in missed)
    ]


def guard_scores(sweep: SweepRecord) -> Mapping[str, Scores]:
    """Return guard metric -> configuration -> seed -> value of the ended trials; NaN if a trial is
    not complete or did not log the metric.
    """
    guards = guards_by(sweep.spec)
    scores: dict[str, dict[str, dict[Hashable, float]]] = {metric: {} for metric in guards}
    for configuration in sweep.configurations:
        number = str(configuration.number)
        for metric in guards:
            scores[metric][number] = {}
        for seed in sweep.spec.seeds:
            if seed not in configuration.results:
                continue
            trial = configuration.results[seed]
            records = []
            if trial.state == "COMPLETE":
                records = read_records(RunFolder(sweep.folder.trial(trial.name)).metrics)
            for metric, guard in guards.items():
                scores[metric][number][seed] = guard.value(records) if records else math.nan
    return scores


def interim_guards(
    sweep: SweepRecord, design: Design, baseline: str
) -> dict[str, dict[str, Difference]]:
    """Return finalist -> guard metric -> its difference at the latest interim analysis, with the
    boundaries of the plan. A metric is left out if the baseline has no score in it.

    The boundaries spread the false positive rate over all analyses, so a guard that holds at one
    of several analyses is as reliable as a guard that is tested once.
    """
    found: dict[str, dict[str, Difference]] = {}
    guards = guards_of(sweep.spec.objective.guards, "objective.guards")
    scores = guard_scores(sweep)
    for guard in guards:
        of_guard = scores[guard.metric]
        if not any(map(math.isfinite, of_guard[baseline].values())):
            continue
        for difference in interim_results(design, of_guard, baseline, guard.mode):
            found.setdefault(difference.configuration, {})[guard.metric] = difference
    return found


def checked(sweep: SweepRecord, differences: ByMetric) -> list[CheckedGuard]:
    """Return the outcome of every guard of the sweep for one finalist."""
    guards = []
    for guard in guards_of(sweep.spec.objective.guards, "objective.guards"):
        difference = differences.get(guard.metric)
        guards.append(CheckedGuard.of(guard.metric, guard.margin, sign_of(guard.mode), difference))
    return guards
