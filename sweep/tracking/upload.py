"""Send records to MLflow afterwards, if a sweep was offline or trials did not reach the server."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from loptune.errors import StorageError, listed
from loptune.mlflow_runs import PARENT_TAG
from loptune.run_names import lock_folder
from sweep.record.folder import write_spec
from sweep.record.sweep_record import SweepRecord
from sweep.tracking.outcomes import EndedTrial, ended_trials
from sweep.tracking.parent_run import open_parent, with_progress
from trainer.run_folder import RunFolder
from trainer.tracking.mlflow_store import tracking_uri
from trainer.tracking.tracker import upload
from trainer.tracking.uploading import has_unsent

_MAX_NAMED = 5  # maximum number of trials in a message


def upload_sweep(sweep: SweepRecord) -> Path:
    """Send the missing records of a sweep and its trials to MLflow, switch tracking on, and write
    the report.

    Raises:
        NameInUseError: the sweep is running.
        StorageError: MLflow cannot be reached.
    """
    # plotly and scipy take a second to import
    from sweep.record.results import read_results
    from sweep.tracking.publish_report import send_report, write_report

    folder = sweep.folder
    spec = sweep.spec
    sweep = SweepRecord(spec.with_program(spec.program.with_tracking(offline=False)), folder)
    with lock_folder(folder.root, "sweep", create=False):
        parent = open_parent(sweep)
        assert parent is not None, "the space is offline"
        uri = tracking_uri(sweep.spec.program.tracking_settings, folder.runs_dir)
        for trial in sorted(folder.trials.glob("*/")):
            if RunFolder(trial).tracking.is_file():
                upload(trial, uri, {PARENT_TAG: parent.run_id})
        ended = []
        for each in ended_trials(sweep):
            ended.append(replace(each, tags={**each.tags, PARENT_TAG: parent.run_id}))
        parent.reconcile(ended)
        all_ended = len(ended) >= sweep.planned
        parent.finish("FINISHED" if all_ended else "KILLED")
        write_spec(folder, sweep.spec)
        results = read_results(sweep, may_run=False)
        path = write_report(sweep, results)
        send_report(sweep, results, parent)
        return path


def send_ended(sweep: SweepRecord, uri: str, ended: Iterable[EndedTrial]) -> None:
    """Send the records of completed trials that ended before they could upload them. Other ended
    trials are skipped, because their ranks may still be closing. A record that cannot be read is
    left to `send_unsent`, which reports it.

    Raises:
        StorageError: MLflow cannot be reached.
    """
    completed = [each.trial.name for each in ended if each.trial.state == "COMPLETE"]
    paths = [sweep.folder.trial(name) for name in completed]
    _, problem = _send([path for path in paths if has_unsent(path)], uri)
    if problem is not None and problem.where == uri:
        raise problem


def send_unsent(sweep: SweepRecord, uri: str) -> None:
    """Send records that trials could not send. The sweep must not be running.

    Raises:
        StorageError: some records were not sent; the error lists their trials.
    """
    waiting = [path for path in sorted(sweep.folder.trials.glob("*")) if has_unsent(path)]
    left, problem = _send(with_progress(waiting, "sent to MLflow"), uri)
    if problem is None:
        return
    raise StorageError(
        f"part of the record of {listed(left, _MAX_NAMED)} is not in MLflow: {problem.what}",
        problem.where,
        f"fix this, then run {sweep.command('resume')} to send it",
        code="records-not-sent",
    )


def _send(run_dirs: Iterable[Path], uri: str) -> tuple[list[str], StorageError | None]:
    """Send the records of the trials in these folders. Return the names of the trials whose records
    could not be sent, and the last error, or None.
    """
    left = []
    problem = None
    for run_dir in run_dirs:
        # do not wait for a dead server once per trial
        server_is_down = problem is not None and problem.where == uri
        try:
            if not server_is_down:
                upload(run_dir, uri)
                continue
        except StorageError as error:
            problem = error
        left.append(run_dir.name)
    return left, problem
