"""Which resources of the long-lived processes grow in long runs of the built-in tiny model?

    python -m research.soak steps 5000      # training steps in one process
    python -m research.soak trials 200      # trials of a sweep, sequentially in one reused rank
    python -m research.soak steps 5000 --picture FILE.png

Steps and trials are as small as possible, but all parts of a step run, and everything is recorded
in MLflow (SQLite). Each row covers a tenth of the run: the resources of the processes at its end,
the files below the runs folder, and the CPU seconds per step or trial within it. CPU seconds are
also valid on a busy machine.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import psutil
import yaml
from plotly.subplots import make_subplots

from dashboards.labels import PALETTE
from research.png import write_png
from research.tables import print_rows
from sweep.driver.guard import sweep_processes
from sweep.record.folder import sweep_folder

NAME = "soak"
FRACTION = 0.098  # of the run between two rows; the last of ten rows is taken before the end
POLL_S = 0.5
SMALL: dict[str, Any] = {
    "rollout.prompts_per_step": 2,
    "rollout.group_size": 2,
    "rollout.max_new_tokens": 16,
    "optim.update_batch_size": 4,
    "evaluation.completions_per_problem": 1,
    "evaluation.sets": {
        "dev": {"source": "generated", "split": "dev", "people": [2], "size": 4, "limit": 4}
    },
    "data.train": {"source": "generated", "split": "train", "people": [2], "size": 100},
    "reward.functions": {"research.soak:varied": 1.0},
}


def varied(text: str) -> float:
    """Return a reward that differs between completions, so that every step changes the weights."""
    return len(text) % 7 / 7


@dataclass(frozen=True)
class Held:
    """The resources of one process."""

    memory_mb: float
    files: int
    threads: int
    cpu_s: float

    @classmethod
    def by(cls, process: psutil.Process) -> "Held":
        """Measure a process."""
        with process.oneshot():
            times = process.cpu_times()
            memory = process.memory_info().rss / 2**20
            files = process.num_fds()
            return cls(memory, files, process.num_threads(), times.user + times.system)


def watch(
    command: list[object],
    done: Callable[[], int],
    total: int,
    find: Callable[[psutil.Process], dict[str, psutil.Process]],
    runs: Path,
) -> list[list[str]]:
    """Run a command to its end, and return a row for each process at each tenth of ``total``.

    Raises:
        RuntimeError: the command failed.
    """
    rows = []
    last: dict[str, tuple[int, float]] = {}
    with ExitStack() as stack:
        out = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
        arguments = [sys.executable, "-m", *map(str, command)]
        process = stack.enter_context(
            subprocess.Popen(arguments, stdout=out, stderr=subprocess.STDOUT)
        )
        stack.callback(process.kill)
        next_row = FRACTION * total
        while process.poll() is None:
            time.sleep(POLL_S)
            count = done()
            if last and count < next_row:
                continue
            with suppress(psutil.Error, FileNotFoundError):
                sizes = [path.stat().st_size for path in runs.rglob("*") if path.is_file()]
                written = [str(len(sizes)), f"{sum(sizes) / 2**20:.1f}"]
                for role, found in find(psutil.Process(process.pid)).items():
                    held = Held.by(found)
                    if role in last:
                        before, cpu_s = last[role]
                        each = (held.cpu_s - cpu_s) / (count - before)
                        row = [role, str(count), f"{held.memory_mb:.0f}", str(held.files)]
                        rows.append([*row, str(held.threads), f"{each:.3f}", *written])
                        print(*rows[-1], flush=True)
                        next_row = count + FRACTION * total
                    if count:
                        last[role] = (count, held.cpu_s)
        if process.wait():
            out.seek(0)
            raise RuntimeError(f"it ended with {process.returncode}:\n{out.read()[-2000:]}")
    return sorted(rows, key=lambda row: (row[0], int(row[1])))


def soak_steps(steps: int, runs: Path) -> list[list[str]]:
    """Train this many steps in one process."""
    settings = SMALL | {"max_steps": steps, "evaluation.every_steps": 50}
    settings["checkpoint.every_steps"] = 50
    values = [f"{key}={value}".replace("'", "") for key, value in settings.items()]
    metrics = runs / NAME / "metrics.jsonl"

    def done() -> int:
        return metrics.read_bytes().count(b"time/step") if metrics.exists() else 0

    command = ["trainer", "run", "tiny_kk", *values, "--name", NAME, "--runs-dir", runs]
    return watch(command, done, steps, lambda process: {"trainer": process}, runs)


def soak_trials(trials: int, runs: Path) -> list[list[str]]:
    """Train this many trials of two steps, sequentially."""
    overrides = SMALL | {"max_steps": 2, "evaluation.every_steps": 1, "checkpoint.every_steps": 1}
    space = {
        "name": NAME,
        "trainer": {"preset": "tiny_kk", "overrides": overrides},
        "parameters": {"algorithm.ar_alpha": {"uniform": [0.0, 0.5]}},
        "baselines": [{"algorithm.ar_alpha": 0.0}],
        "search": {"sampler": "random", "configurations": trials - 1, "seed": 0},
        "limits": {"max_concurrent": 1},
    }
    path = runs.parent / "space.yaml"
    path.write_text(yaml.safe_dump(space))
    folder = sweep_folder(runs, NAME).root
    event_log = folder / "events.jsonl"

    def done() -> int:
        return event_log.read_bytes().count(b'"result"') if event_log.exists() else 0

    def find(driver: psutil.Process) -> dict[str, psutil.Process]:
        ranks = [process for process in sweep_processes(folder) if "RankWorker" in process.name()]
        return {"driver": driver, "rank": ranks[0]} if ranks else {"driver": driver}

    command = ["sweep", "run", path, "--runs-dir", runs, "--cpus", 2]
    return watch(command, done, trials, find, runs)


HEADINGS = ["process", "done", "memory [MB]", "open files", "threads", "CPU each [s]"]
HEADINGS += ["files written", "[MB]"]


# column of the table -> title of its panel
PANELS = {
    2: "memory [MB]",
    3: "open files",
    4: "threads",
    5: "processor time each [s]",
    7: "files written [MB]",
}


def draw(kind: str, rows: list[list[str]]) -> go.Figure:
    """Plot the growth: one panel per column of the table, one line per process, with axes from
    zero.
    """
    drawing = make_subplots(
        rows=1, cols=len(PANELS), subplot_titles=list(PANELS.values()), horizontal_spacing=0.06
    )
    roles = sorted({row[0] for row in rows})
    for panel, column in enumerate(PANELS, start=1):
        for color, role in zip(PALETTE, roles, strict=False):
            measured = [row for row in rows if row[0] == role]
            drawing.add_scatter(
                x=[int(row[1]) for row in measured],
                y=[float(row[column]) for row in measured],
                name=role,
                mode="lines+markers",
                line={"color": color},
                showlegend=panel == 1,
                row=1,
                col=panel,
            )
    drawing.update_xaxes(title=kind, rangemode="tozero", gridcolor="lightgray")
    drawing.update_yaxes(rangemode="tozero", gridcolor="lightgray")
    drawing.update_annotations(font_size=12)
    drawing.update_layout(
        height=300,
        margin={"l": 40, "r": 20, "t": 40, "b": 50},
        legend={"orientation": "h", "y": -0.3},
    )
    return drawing


def main() -> None:
    """Run the command, and print and plot the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=["steps", "trials"])
    parser.add_argument("count", type=int)
    parser.add_argument("--picture", type=Path, metavar="FILE.png")
    arguments = parser.parse_args()
    soak = {"steps": soak_steps, "trials": soak_trials}[arguments.kind]
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        runs = Path(folder) / "runs"
        runs.mkdir()
        rows = soak(arguments.count, runs)
    print_rows(f"{arguments.count} {arguments.kind}", HEADINGS, rows)
    if arguments.picture:
        write_png(draw(arguments.kind, rows), arguments.picture)


if __name__ == "__main__":
    main()
