"""The time budget of a run (``max_hours``). When it is used up, the run stops at a step boundary,
as after Ctrl-C.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loptune.files import read_records
from trainer.run_folder import RunFolder


def trained_hours(folder: RunFolder, up_to_step: int) -> float:
    """Return the recorded hours of training and evaluation up to a step.

    Steps that are trained again after a crash are not counted twice: the budget counts the time
    that led to the checkpoint.
    """
    records = [
        record for record in read_records(folder.metrics) if record.get("step", 0) <= up_to_step
    ]
    durations = [
        record.get(name) or 0.0 for record in records for name in ("time/step", "time/evaluation")
    ]
    return sum(durations) / 3600


def with_more_hours(resume: str, hours: float) -> str:
    """Return the command that resumes a run with twice its time budget, which counts from the run's
    first step.
    """
    return f"{resume} max_hours={2 * hours:g}"


class TimeBudget:
    """The hours that a run may still train in this process; ``spent`` is True once they are used
    up.
    """

    def __init__(self, hours: float | None, trained: float = 0.0) -> None:
        """Start the budget; ``trained`` is the number of hours that earlier processes of the run
        used.
        """
        self.hours = hours
        self.spent = False
        self._left_s = None if hours is None else max(0.0, hours - trained) * 3600

    @contextmanager
    def watch(self, request_stop: Callable[[], None]) -> Iterator[None]:
        """Call ``request_stop`` when the budget is used up, unless the block ends first."""
        if self._left_s is None:
            yield
            return

        def stop() -> None:
            self.spent = True
            request_stop()

        timer = threading.Timer(self._left_s, stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
