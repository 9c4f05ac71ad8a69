"""How runs ended, according to the program that started them: W&B, MLflow, Ray, Optuna, SLURM."""

import pandas as pd

from dashboards.sources.run_columns import RunColumns
from dashboards.trial import State

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
# least informative state first, for a run whose rows differ
_ORDER: tuple[State, ...] = ("COMPLETE", "RUNNING", "PRUNED", "FAIL")


def state_column(table: pd.DataFrame, columns: RunColumns) -> str | None:
    """Return the column with the end state of each run, or None: its values are all known words,
    and it has no other role.
    """
    for column in COLUMNS:
        if column not in table or column in {*columns.point, columns.score, columns.seed}:
            continue
        words = table[column].dropna().astype(str).map(_word)
        if len(words) and words.isin(_WORDS).all():
            return column
    return None


def row_states(table: pd.DataFrame, columns: RunColumns) -> "pd.Series[str]":
    """Return the state of each row's run: COMPLETE, FAIL, RUNNING or PRUNED."""
    states = pd.Series("COMPLETE", index=table.index, dtype=object)
    column = state_column(table, columns)
    if column is not None:
        states = table[column].map(
            lambda value: "COMPLETE" if pd.isna(value) else _WORDS[_word(value)]
        )
    for condition in columns.failed:
        states = states.mask(condition.holds(table[condition.column]), "FAIL")
    return states


def run_state(states: "pd.Series[str]") -> State:
    """Return the most informative state among the rows of a run."""
    return max(_ORDER, key=lambda state: (state in set(states), _ORDER.index(state)))


def _word(value: object) -> str:
    text = str(value).strip().lower().replace(" ", "_")
    return text.rpartition(".")[2]  # as in RunStatus.FAILED
