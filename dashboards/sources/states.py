"""Read the end state of runs as W&B, MLflow, Ray, Optuna and SLURM record it."""

import re

import pandas as pd

from dashboards.sources.conditions import Condition
from dashboards.sources.roles import quoted
from dashboards.sources.run_columns import RunColumns
from dashboards.trial import State
from loptune.errors import ConfigError

STATE = "state of a row"  # column with the state of each row's run
COLUMNS = ("State", "state", "status", "Status", "_state", "run_state", "run_status", "STATUS")
_STATES: dict[State, tuple[str, ...]] = {
    "COMPLETE": (
        "finished", "complete", "completed", "success", "succeeded", "successful", "terminated",
        "done", "ok", "ended",
    ),
    "FAIL": (
        "failed", "fail", "failure", "crashed", "crash", "error", "errored", "killed", "preempted",
        "aborted", "cancelled", "canceled", "diverged", "timeout", "timed_out", "out_of_memory",
        "oom", "node_fail", "lost",
    ),
    "RUNNING": (
        "running", "pending", "queued", "scheduled", "starting", "preempting", "paused", "waiting",
    ),
    "PRUNED": ("pruned",),
}  # fmt: skip
_WORDS = {word: state for state, words in _STATES.items() for word in words}
_MOST_KNOWN = 0.5  # minimum fraction of the rows with a known state
# least informative state first, for a run whose rows differ
_ORDER: tuple[State, ...] = ("COMPLETE", "RUNNING", "PRUNED", "FAIL")


def state_column(table: pd.DataFrame, columns: RunColumns) -> str | None:
    """Return the column with the end state of each run, or None. Most of its values are known
    states, and it has no other role.

    Raises:
        ConfigError: one of its values is not a known state, and no condition for failed runs uses
            this column.
    """
    for column in COLUMNS:
        if column not in table or column in columns.every:
            continue
        texts = table[column].dropna().astype(str)
        known = texts.map(lambda text: _word(text) in _WORDS)
        spoken = {condition.column for condition in columns.failed}
        if not len(texts) or known.mean() < _MOST_KNOWN:
            continue
        if not known.all() and column not in spoken:
            unknown = texts[~known].iloc[0]
            raise ConfigError(
                f"'{unknown}' is not a known end state of a run",
                f"column {column}",
                f"if these runs failed, add --failed "
                f"{quoted(str(Condition(column, '=', unknown)))}; if the column does not describe "
                f"how runs ended, add --ignore {column}",
                code="unknown-state",
            )
        return column
    return None


def row_states(table: pd.DataFrame, columns: RunColumns) -> "pd.Series[str]":
    """Return the state of each row's run: COMPLETE, FAIL, RUNNING or PRUNED. A row without a known
    state counts as COMPLETE.

    Raises:
        ConfigError: see `state_column` and `Condition.holds`.
    """
    states = pd.Series("COMPLETE", index=table.index, dtype=object)
    column = state_column(table, columns)
    if column is not None:
        states = table[column].map(
            lambda value: "COMPLETE" if pd.isna(value) else _WORDS.get(_word(value), "COMPLETE")
        )
    for condition in columns.failed:
        states = states.mask(condition.holds(table[condition.column]), "FAIL")
    return states


def run_state(states: "pd.Series[str]") -> State:
    """Return the most informative state among the rows of a run."""
    return max(_ORDER, key=lambda state: (state in set(states), _ORDER.index(state)))


def _word(value: object) -> str:
    """Return a normalized state: ``failed`` for ``RunStatus.FAILED`` and ``failed (OOM)``."""
    text = str(value).strip().lower().rpartition(".")[2]
    whole = text.replace(" ", "_").replace("-", "_")
    first = re.split(r"[^a-z_]", text.strip())[0]
    return whole if whole in _WORDS or first not in _WORDS else first
