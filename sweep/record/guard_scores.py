"""Guards of a confirmation in rounds, read from the records of its trials."""

import math
from collections.abc import Hashable, Mapping

from dashboards.sources.scores import guards_of
from dashboards.statistics.checked_guards import CheckedGuard
from dashboards.statistics.difference import Difference, guard_outcome
from dashboards.statistics.group_sequential import Design
from dashboards.statistics.rounds import interim_results
from dashboards.statistics.seed_noise import Scores
from dashboards.trial import sign_of
from loptune.files import read_records
from sweep.record.sweep_record import SweepRecord
from sweep.space.scoring import scoring_of
from trainer.run_folder import RunFolder

ByMetric = Mapping[str, Difference]


def metric_scores(sweep: SweepRecord, metric: str) -> Scores:
    """Return configuration -> seed -> score of the ended trials in another metric, computed like
    the objective's; NaN if a trial failed or did not log the metric.
    """
    scoring = scoring_of(sweep.spec).of(metric)
    scores: dict[str, dict[Hashable, float]] = {}
    for configuration in sweep.configurations:
        by_seed: dict[Hashable, float] = {}
        for seed in sweep.spec.seeds:
            if seed not in configuration.results:
                continue
            trial = configuration.results[seed]
            by_seed[seed] = math.nan
            if trial.state == "COMPLETE":
                records = read_records(RunFolder(sweep.folder.trial(trial.name)).metrics)
                by_seed[seed] = scoring.score(scoring.values(records))
        scores[str(configuration.number)] = by_seed
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
    for guard in guards_of(sweep.spec.objective.guards, "objective.guards"):
        scores = metric_scores(sweep, guard.metric)
        if not any(map(math.isfinite, scores[baseline].values())):
            continue
        for difference in interim_results(design, scores, baseline, guard.mode):
            found.setdefault(difference.configuration, {})[guard.metric] = difference
    return found


def checked(sweep: SweepRecord, differences: ByMetric) -> list[CheckedGuard]:
    """Return the outcome of every guard of the sweep for one finalist."""
    guards = []
    for guard in guards_of(sweep.spec.objective.guards, "objective.guards"):
        difference = differences.get(guard.metric)
        guards.append(
            CheckedGuard(
                metric=guard.metric,
                margin=guard.margin,
                sign=sign_of(guard.mode),
                outcome=guard_outcome(difference, guard.margin),
                found=difference,
            )
        )
    return guards
