"""Whether runs came to their end: at the same step, without NaN in their last evaluations."""

from collections.abc import Sequence

import pandas as pd

from dashboards.sources.run_columns import RunColumns
from dashboards.trial import TrialRecord
from loptune.errors import ConfigError, listed
from loptune.terminal.table import counted

_TOLERANCE = 0.05  # of the longest run: logging at other steps does not make a run short
_MAX_NAMED = 6


def ended_without_score(rows: pd.DataFrame, columns: RunColumns, evaluated: set[float]) -> bool:
    """Return whether a run diverged: at steps at which some run has a score, its rows have one at
    first and none at the end.

    A run that lacks scores at such steps earlier, too, is evaluated on another schedule.
    """
    points = rows[rows[columns.step].isin(evaluated)].groupby(columns.step)[columns.score]
    scored = points.count().sort_index() > 0
    if scored.all() or not scored.any():
        return False
    first_blank = int((~scored).to_numpy().argmax())
    return not scored.iloc[first_blank:].any()


def check_endings(trials: Sequence[TrialRecord], columns: RunColumns) -> None:
    """Refuse runs that ended well before others, unless that is allowed.

    Raises:
        ConfigError: names the short runs and the last step that all have.
    """
    complete = [trial for trial in trials if trial.state == "COMPLETE" and trial.step == trial.step]
    if not complete or columns.allow_unequal:
        return
    longest = max(trial.step for trial in complete)
    short = [trial for trial in complete if trial.step < (1 - _TOLERANCE) * longest]
    if not short:
        return
    named = [f"{trial.rule} seed {trial.seed} (step {trial.step:.0f})" for trial in short]
    common = min(trial.step for trial in complete)
    raise ConfigError(
        f"{counted(len(short), 'run')} of {len(complete)} ended before step {longest:.0f}, the "
        f"end of the longest: {listed(named, _MAX_NAMED)}",
        columns.step,
        f"compare all at their last common step with --at-step {common:.0f}; or take each run as "
        "it ended with --allow-unequal; if they failed, say so with --failed COLUMN=VALUE",
        code="unequal-steps",
    )
