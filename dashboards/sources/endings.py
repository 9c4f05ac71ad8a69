"""Detect runs that ended early or diverged (no score in their last evaluations)."""

from collections.abc import Sequence

import pandas as pd

from dashboards.sources.roles import quoted
from dashboards.sources.run_columns import RunColumns
from dashboards.trial import TrialRecord
from loptune.errors import ConfigError, listed
from loptune.terminal.table import counted

# A run is short if it ends earlier than the longest one by more than this fraction. Smaller
# differences arise if runs log at different steps.
_TOLERANCE = 0.05
_MAX_NAMED = 6
# columns with the last step of a run, in tables with one row per run
_COUNTERS = (
    "_step", "global_step", "trainer/global_step", "train/global_step", "training_iteration",
    "timesteps_total", "total_timesteps", "time/total_timesteps", "env_steps",
)  # fmt: skip


def ended_without_score(rows: pd.DataFrame, columns: RunColumns, evaluated: set[float]) -> bool:
    """Return whether a run diverged: it has scores at its early evaluation steps and none at the
    last ones. A run that also misses earlier steps has a different evaluation schedule and did not
    diverge.
    """
    points = rows[rows[columns.step].isin(evaluated)].groupby(columns.step)[columns.score]
    scored = points.count().sort_index() > 0
    if scored.all() or not scored.any():
        return False
    first_blank = int((~scored).to_numpy().argmax())
    return not scored.iloc[first_blank:].any()


def counter_of(runs: pd.DataFrame, columns: RunColumns) -> str | None:
    """Return the column with the last step of each run, for tables with one row per run; None if
    there is no such column, or if the table has a step column.
    """
    if columns.step in runs:
        return None
    free = [name for name in _COUNTERS if name in runs and name not in columns.every]
    return next(iter(free), None)


def check_endings(
    trials: Sequence[TrialRecord], columns: RunColumns, counter: str | None = None
) -> None:
    """Reject runs that ended well before others, unless ``allow_unequal`` is set.

    ``counter`` is the column with the last step of each run, if there are no evaluations.

    Raises:
        ConfigError: some runs are too short; the error names them and the last common step.
    """
    complete = [trial for trial in trials if trial.state == "COMPLETE" and trial.step == trial.step]
    if not complete or columns.allow_unequal or columns.axis:
        return
    longest = max(trial.step for trial in complete)
    least = (1 - _TOLERANCE) * longest
    short = [trial for trial in complete if trial.step < least]
    if not short:
        return
    named = [f"{trial.rule} seed {trial.seed} (step {trial.step:.0f})" for trial in short]
    common = min(trial.step for trial in complete)
    found = f"ended before step {longest:.0f}, where the longest run ended"
    way = (
        f"compare all at their last common step with --at-step {common:.0f}, or interpolate "
        f"between their evaluations with --axis {quoted(columns.step)}"
    )
    if columns.at_step is not None:
        found = f"were not evaluated at step {longest:.0f}, unlike the others"
        way = (
            "interpolate between their evaluations with "
            f"--axis {quoted(columns.step)} --at {columns.at_step:.12g}"
        )
    failed = "--failed COLUMN=VALUE"
    if counter is not None:
        way = f"leave them out with --where {quoted(f'{counter}>={least:.0f}')}"
        failed = f"--failed {quoted(f'{counter}<{least:.0f}')}"
    raise ConfigError(
        f"{counted(len(short), 'run')} of {len(complete)} {found}: {listed(named, _MAX_NAMED)}",
        counter or columns.step,
        f"{way}; to use the last score of each run, add --allow-unequal; if they failed, add "
        f"{failed}",
        code="unequal-steps",
    )
