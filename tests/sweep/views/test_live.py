import io
import os
import pty
import re
import threading

from rich.console import Console

from sweep.record.folder import sweep_folder
from sweep.record.sweep_record import open_sweep
from sweep.search.event_log import EventLog
from sweep.views.live import live_table
from tests.sweep.ended_sweeps import write_sweep


def test_a_terminal_shows_the_running_trials_below_the_lines(tmp_path):
    search = {"sampler": "random", "configurations": 3}
    write_sweep(tmp_path, "demo", {0: {0: 0.5}, 1: {}}, search=search)
    event_log = EventLog(sweep_folder(tmp_path, "demo").event_log)
    key = {"trial_id": "x", "seed": 0, "configuration": 0}
    ended = {"state": "COMPLETE", "score": 0.5, "reason": "", "step": 4}
    event_log.append({"event": "retry", **key, "time": 2.0})
    event_log.append({"event": "trial", **key, "time": 100.0})
    event_log.append({"event": "result", **key, **ended, "time": 180.0})
    sweep = open_sweep(tmp_path, "demo")
    folder = sweep.folder.trial("c001-s0")
    folder.mkdir(parents=True)
    (folder / "config.yaml").touch()
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        console = Console(
            file=stream, width=100, highlight=False, force_terminal=True, _environ={"TERM": "xterm"}
        )
        seen = b""
        with live_table(sweep, console, lambda: {"c001-s0": 0.25}):
            threading.Thread(target=console.print, args=("c001-s0  started",)).start()
            while b"started" not in seen or b"trials ended" not in seen.partition(b"started")[2]:
                seen += os.read(controller, 4096)
        above, _, below = seen.decode().partition("started")
    os.close(controller)
    assert "\x1b[?25h" in above  # the cursor would stay hidden where the driver is killed
    rows = [line.split() for line in re.sub(r"\x1b\[[\d;]*m", "", below).split("\r\n")[1:3]]
    assert rows[0] == ["trial", "step", "score", "time", "left", "parameters"]
    assert rows[1][:5] == ["c001-s0", "1/4", "0.25", "1m", "00s"]
    assert f"demo: 1 of {sweep.planned} trials ended, about " in below
    assert "c000-s0" not in below


def test_elsewhere_there_is_no_table(tmp_path):
    output = io.StringIO()
    write_sweep(tmp_path, "demo", {0: {}})
    with live_table(open_sweep(tmp_path, "demo"), Console(file=output), dict):
        pass
    assert output.getvalue() == ""
