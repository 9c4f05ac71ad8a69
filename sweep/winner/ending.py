"""The end of a confirmation, whichever command ran its last trial: the verdict, and the report of
the sweep that it confirms.
"""

from pathlib import Path

from loptune.errors import UserError
from sweep.record.sweep_record import SweepRecord, open_sweep, report_errors_printed


def confirmed_sweep(confirmation: SweepRecord) -> SweepRecord | None:
    """Return the sweep that a sweep confirms; None if it confirms none, or if the confirmed sweep
    is missing.
    """
    confirms = confirmation.spec.confirms
    if confirms is None:
        return None
    try:
        return open_sweep(confirmation.folder.runs_dir, confirms.sweep)
    except UserError:
        return None


def report_confirmation(sweep: SweepRecord, log: Path, ended: bool = False) -> None:
    """Write the report of a confirmed sweep. If the confirmation has ended, print its result
    first.

    Args:
        sweep: the confirmed sweep.
        log: log file, which is named if there is no report.
        ended: whether the confirmation has ended.
    """
    with report_errors_printed(sweep, log):
        from dashboards.headline import confirmation_sentences
        from sweep.record.results import read_results
        from sweep.tracking.parent_run import find_parent
        from sweep.tracking.publish_report import send_report, write_report

        results = read_results(sweep)
        if ended:
            print("\n".join(confirmation_sentences(results)))
        print(f"report: {write_report(sweep, results)}")
        if (parent := find_parent(sweep)) is not None:
            send_report(sweep, results, parent)


def report_resumed(confirmation: SweepRecord, sweep: SweepRecord) -> None:
    """Report on a sweep after its confirmation was resumed. Only ``confirm --rounds`` decides on
    rounds, so the report of an open confirmation names that command.

    Raises:
        StorageError: a different version of loptune recorded the rounds.
    """
    from sweep.record.recorded_rounds import recorded_rounds  # scipy takes a second to import

    rounds = recorded_rounds(confirmation.reloaded())
    is_open = rounds is not None and rounds.outcome == "open"
    report_confirmation(sweep, confirmation.folder.log, ended=not is_open)
    if is_open:
        print(f"to continue its rounds: {sweep.command('confirm', '--rounds')}")
