"""Sending a sweep that ran offline to MLflow, from where it is reported like any other."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sweep.record.folder import SweepFolder, hold, raise_held, write_spec
from sweep.record.parent_run import ParentRun
from sweep.record.report import report
from sweep.record.summary import planned_trials, trial_outcomes
from sweep.space.spec import SweepSpec
from trainer.tracking.mlflow_store import PARENT_TAG, tracking_uri
from trainer.tracking.shipping import STATE_FILE
from trainer.tracking.tracker import upload

AT_A_TIME = 20  # runs that are looked for one by one: those sent without their parent are not found by it


def online(spec: SweepSpec) -> SweepSpec:
    """The space with MLflow."""
    base = spec.base
    tracked = base.model_copy(update={"tracking": base.tracking.model_copy(update={"offline": False})})
    overrides = {key: value for key, value in spec.trainer.overrides.items() if key != "tracking.offline"}
    trainer = spec.trainer.model_copy(update={"config": tracked, "overrides": overrides})
    return spec.model_copy(update={"trainer": trainer})


def upload_sweep(
    spec: SweepSpec, folder: SweepFolder, open_parent: Callable[[SweepSpec, SweepFolder], ParentRun | None]
) -> Path:
    """Send a sweep and its trials to MLflow, and write the report; from then on the sweep is tracked there.

    Doing it again sends what has been added.

    Args:
        spec: the sweep's space.
        folder: its folder.
        open_parent: opens the sweep's run in MLflow.

    Returns:
        The path of the report.

    Raises:
        NameHeldError: a driver is at work.
        StorageError: MLflow cannot be reached.
    """
    raise_held(folder)
    spec = online(spec)
    with hold(folder):
        parent = open_parent(spec, folder)
        assert parent is not None, "the space is online"
        uri = tracking_uri(spec.base.tracking, folder.runs_dir)
        for state in sorted((folder.root / "trials").glob(f"*/{STATE_FILE}")):
            upload(state.parent, uri, {PARENT_TAG: parent.run_id})
        outcomes = [
            replace(one, tags={**one.tags, PARENT_TAG: parent.run_id}) for one in trial_outcomes(spec, folder)
        ]
        for start in range(0, len(outcomes), AT_A_TIME):
            parent.reconcile(outcomes[start : start + AT_A_TIME])
        parent.finish("FINISHED" if len(outcomes) >= planned_trials(spec) else "KILLED")
        write_spec(folder, spec)
        return report(folder, spec, uri)
