"""Live table of the running trials, below a sweep's output in a terminal."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table

from loptune.terminal.logs import progress_is_shown
from loptune.terminal.table import duration, number
from sweep.record.sweep_record import SweepRecord
from sweep.record.trial_table import setting_text, step_text
from sweep.views.time_left import seconds_left

logger = logging.getLogger(__name__)

# returns running trial -> latest score, or None if the trial has none
LatestScores = Callable[[], Mapping[str, float | None]]


@contextmanager
def live_table(sweep: SweepRecord, console: Console, scores: LatestScores) -> Iterator[None]:
    """Show the running trials at the bottom of a terminal; do nothing elsewhere."""

    def render() -> RenderableType:
        try:
            return _table(sweep.reloaded(), scores())
        except Exception:  # a display error must not end the sweep
            logger.exception("cannot show the table of running trials")
            return ""

    shown = Live(console=console, get_renderable=render, refresh_per_second=0.5, transient=True)
    if not (console.is_terminal and progress_is_shown()):
        yield
        return
    with shown:
        console.show_cursor()  # the cursor would stay hidden if the driver is killed
        yield


def _table(sweep: SweepRecord, scores: Mapping[str, float | None]) -> Group:
    trials = sweep.trials(running=True)
    points = {str(each.number): each.parameters for each in sweep.configurations}
    left, all_left = seconds_left(sweep, trials)
    table = Table("trial", "step", "score", "time left", "parameters", box=None)
    for trial in trials:
        if trial.name in scores:
            time_left = duration(left[trial.name]) if trial.name in left else ""
            score = number(scores[trial.name])
            parameters = setting_text(sweep.spec, trial.parameters, points.get(trial.configuration))
            table.add_row(trial.name, step_text(trial), score, time_left, parameters)
    ended = sum(trial.ended for trial in trials)
    ends = f", about {duration(all_left)} left" if all_left is not None else ""
    return Group(table, f"{sweep.folder.name}: {ended} of {sweep.planned} trials ended{ends}")
