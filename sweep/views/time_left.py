"""Estimate the time left for running trials and for the sweep."""

import statistics
import time
from collections.abc import Sequence

from dashboards.trial import TrialRecord
from sweep.record.sweep_record import SweepRecord
from sweep.record.trial_table import recorded_steps
from sweep.search.history import ENDED, STARTED, TrialKey


def seconds_left(
    sweep: SweepRecord, trials: Sequence[TrialRecord]
) -> tuple[dict[str, float], float | None]:
    """Return the seconds left for each running trial and for the sweep; unknown ones are left out.

    A trial's total time is the median of the complete trials. Before the first one completes, it is
    extrapolated from the running trials' fraction of steps. Early stopping may shorten both.
    """
    started: dict[TrialKey, float] = {}
    durations: list[float] = []
    for record in sweep.events:
        if record["event"] not in (STARTED, ENDED):
            continue
        key = TrialKey(record["configuration"], record["seed"])
        if record["event"] == STARTED:
            started[key] = record["time"]
        elif record["state"] == "COMPLETE" and key in started:
            durations.append(record["time"] - started[key])
    running = [trial for trial in trials if trial.state == "RUNNING"]
    fractions: dict[str, float] = {}  # trial name -> fraction of its steps completed
    for trial in running:
        if trial.total_steps:
            fractions[trial.name] = recorded_steps(trial) / trial.total_steps
    if not durations:
        begun = {key.name: moment for key, moment in started.items()}
        for name, fraction in fractions.items():
            if fraction:
                durations.append((time.time() - begun[name]) / fraction)
    if not durations or not running:
        return {}, None
    trial_seconds = statistics.median(durations)
    left = {name: trial_seconds * (1 - fraction) for name, fraction in fractions.items()}
    waiting = sweep.planned - sum(trial.ended for trial in trials) - len(running)
    total = sum(left.get(trial.name, trial_seconds) for trial in running) + waiting * trial_seconds
    # at least as long as the slowest running trial
    return left, max([total / len(running), *left.values()])
