"""Estimate the time left for running trials and for the sweep."""

import statistics
import time
from collections.abc import Mapping, Sequence

from dashboards.trial import TrialRecord
from sweep.record.sweep_record import SweepRecord
from sweep.record.trial_table import recorded_steps
from sweep.search.history import ENDED, STARTED, TrialKey


def seconds_left(
    sweep: SweepRecord, trials: Sequence[TrialRecord]
) -> tuple[dict[str, float], float | None]:
    """Return the seconds left for each running trial and for the sweep. Trials of unknown length
    are left out, and the sweep's time is None if it is unknown.

    A trial's total time is the median time of the complete trials. Before the first trial
    completes, it is extrapolated from the running trials' fraction of steps. Early stopping may
    shorten both times.
    """
    running = [trial for trial in trials if trial.state == "RUNNING"]
    fractions: dict[str, float] = {}  # trial name -> fraction of its steps completed
    for trial in running:
        if trial.total_steps:
            fractions[trial.name] = recorded_steps(trial) / trial.total_steps
    durations = _trial_durations(sweep, fractions)
    if not durations or not running:
        return {}, None
    trial_seconds = statistics.median(durations)
    left = {name: trial_seconds * (1 - fraction) for name, fraction in fractions.items()}
    of_running = sum(left.get(trial.name, trial_seconds) for trial in running)
    waiting = sweep.planned - sum(trial.ended for trial in trials) - len(running)
    # Assume that the number of concurrent trials stays the same. The sweep lasts at least as long
    # as its slowest running trial.
    side_by_side = (of_running + waiting * trial_seconds) / len(running)
    return left, max([side_by_side, *left.values()])


def _trial_durations(sweep: SweepRecord, fractions: Mapping[str, float]) -> list[float]:
    """Return the seconds of each complete trial. Without a complete trial, extrapolate the times of
    the running trials from their ``fractions`` of steps.
    """
    started: dict[str, float] = {}  # trial name -> time of its last start
    durations = []
    for record in sweep.events:
        if record["event"] not in (STARTED, ENDED):
            continue
        name = TrialKey(record["configuration"], record["seed"]).name
        if record["event"] == STARTED:
            started[name] = record["time"]
        elif record["state"] == "COMPLETE" and name in started:
            durations.append(record["time"] - started[name])
    if durations:
        return durations
    return [
        (time.time() - started[name]) / fraction for name, fraction in fractions.items() if fraction
    ]
