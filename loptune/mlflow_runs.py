"""The tags that trainer and sweep write to MLflow, and searches by tags."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Tags of every run. The value of the first one is stable, so a run is found after a restart: the
# `loptune.identity` of a single run, the `trial_key` of a trial, or the `sweep_key` of a sweep.
RUN_TAG = "loptune.run"
SWEEP_TAG = "loptune.sweep"  # name of the sweep
PARENT_TAG = "mlflow.parentRunId"  # trial -> its sweep's MLflow run
NOTE_TAG = "mlflow.note.content"  # Markdown description: a sweep's verdict, or why a trial failed
COLOR_TAG = "mlflow.runColor"

# changes to data and reward files that were accepted on resume
CHANGES_TAG = "loptune.accepted_changes"

# Tags of a trial's run.
TRIAL_TAG = "loptune.trial"  # c003-s0
# number of the configuration, such as 3; for a finalist, its number in the original sweep
CONFIGURATION_TAG = "loptune.configuration"
SEED_TAG = "loptune.seed"
ARM_TAG = "loptune.arm"  # value of the tune_within parameter
VARIANT_TAG = "loptune.variant"  # display name of the update rule: grpo + AR
STATE_TAG = "loptune.state"  # RUNNING, COMPLETE, PRUNED or FAIL
REASON_TAG = "loptune.reason"  # failure reason

# Tags of a sweep's run.
CONFIRMS_TAG = "loptune.confirms"  # confirmation sweep -> the sweep it confirms

_SWEEPS = "sweep/"  # start of the keys of sweeps
OF_A_SWEEP = f"tags.`{RUN_TAG}` LIKE '{_SWEEPS}%'"  # condition for `search_runs`


def trial_key(sweep: str, trial: str, sweep_id: str) -> str:
    """Return the value of `RUN_TAG` for the run of a trial, from the names of sweep and trial and
    the sweep's `loptune.identity`.
    """
    return f"{sweep}/{trial}/{sweep_id}"


def sweep_key(sweep: str, sweep_id: str) -> str:
    """Return the value of `RUN_TAG` for the run of a sweep, from its name and its
    `loptune.identity`.
    """
    return f"{_SWEEPS}{sweep}/{sweep_id}"


def find_runs(
    client: "MlflowClient", experiment_ids: list[str], tags: Mapping[str, str]
) -> list[Any]:
    """Return the runs with all given tags, oldest first."""
    return search_runs(
        client, experiment_ids, " and ".join(f"tags.`{key}` = '{tags[key]}'" for key in tags)
    )


def search_runs(client: "MlflowClient", experiment_ids: list[str], condition: str) -> list[Any]:
    """Return all runs that match an MLflow filter string, oldest first (paginated)."""
    runs = []
    token = None
    while True:
        page = client.search_runs(
            experiment_ids, condition, order_by=["start_time ASC"], page_token=token
        )
        runs.extend(page)
        token = page.token
        if not token:
            return runs
