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
from loptune.files import read_records
from sweep.record.sweep_record import SweepRecord
from sweep.space.scoring import scoring_of
from trainer.run_folder import RunFolder

ByMetric = Mapping[str, Difference]


def metric_scores(sweep: SweepRecord, metrics: Sequence[str]) -> Mapping[str, Scores]:
    """Return metric -> configuration -> seed -> score of the ended trials in other metrics,
    computed like the objective's; NaN if a trial failed or did not log the metric.
    """
    scorings = {metric: scoring_of(sweep.spec).of(metric) for metric in metrics}
    scores: dict[str, dict[str, dict[Hashable, float]]] = {metric: {} for metric in metrics}
    for configuration in sweep.configurations:
        number = str(configuration.number)
        for metric in metrics:
            scores[metric][number] = {}
        for seed in sweep.spec.seeds:
            if seed not in configuration.results:
                continue
            trial = configuration.results[seed]
            records = []
            if trial.state == "COMPLETE":
                records = read_records(RunFolder(sweep.folder.trial(trial.name)).metrics)
            for metric, scoring in scorings.items():
                value = scoring.score(scoring.values(records)) if records else math.nan
                scores[metric][number][seed] = value
    return scores


def interim_guards(
    sweep: SweepRecord, design: Design, baseline: str
) -> dict[str, dict[str, Difference]]:
    """Return finalist -> guard metric -> its difference at the latest interim analysis, with the
    boundaries of the plan. A metric is left out if the baseline has no score in it.

    The boundaries spend the error of a false claim over all analyses. So a guard that holds at one
    of several analyses is as reliable as a guard that is tested once.
    """
    found: dict[str, dict[str, Difference]] = {}
    guards = guards_of(sweep.spec.objective.guards, "objective.guards")
    scores = metric_scores(sweep, [guard.metric for guard in guards])
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
