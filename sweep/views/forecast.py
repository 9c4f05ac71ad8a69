"""Forecast of the scores that a sweep's unfinished trials will end with."""

from dashboards.statistics.forecast import Curve, Forecast
from sweep.record.sweep_record import SweepRecord, evaluation_history
from sweep.search.history import TrialKey

LEVEL = 0.8
_WHOLE = 4  # trials that must have reached their end before it can tell


def forecasts(sweep: SweepRecord) -> dict[str, tuple[float, float, float]]:
    """Trial -> mean and `LEVEL` interval of its final score; empty while the sweep cannot tell.

    That takes four whole trials of one known length; a trial needs one evaluation after its first step.
    """
    evaluations, objective = sweep.spec.evaluations, sweep.spec.objective
    curves: dict[str, Curve] = {}
    for configuration in sweep.configurations:
        for seed in sweep.spec.seeds:
            name = TrialKey(configuration.number, seed).name
            history = evaluation_history(sweep.folder.trial(name) / "metrics.jsonl", objective.metric)
            values = tuple(history[step] for step in sorted(history) if step > 0)
            if values:
                curves[name] = Curve(configuration.number, values)
    if evaluations is None or sum(len(curve.values) == evaluations for curve in curves.values()) < _WHOLE:
        return {}
    forecast = Forecast.of(list(curves.values()), evaluations, min(objective.window, evaluations))
    return {
        name: (float(forecast.mean[trial]), *forecast.interval(trial, LEVEL))
        for trial, (name, curve) in enumerate(curves.items())
        if len(curve.values) < evaluations
    }
