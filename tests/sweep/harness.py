"""Starting sweeps of fake trials as processes of their own, and reading what they left behind."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from loptune.files import read_records
from sweep.driver.guard import sweep_processes
from sweep.record.folder import SweepFolder
from tests.run_cli import start_cli

SHORT = {"max_steps": 4, "evaluation.every_steps": 2, "checkpoint.every_steps": 2}
FOUR_GPUS = {"gpus_per_trial": 4, "workers_per_trial": 4}
SEVERAL_RANKS = {"preset": "tiny_kk", "overrides": {**SHORT, "parallel.strategy": "ddp"}}


FAKE: dict[str, Any] = {
    "name": "fake",
    "trainer": {"preset": "tiny_kk", "overrides": SHORT},
    "parameters": {"algorithm.ar_alpha": {"uniform": [0.0, 0.5]}},
    "baselines": [{"algorithm.ar_alpha": 0.1}, {"algorithm.ar_alpha": 0.3}],
    "search": {"sampler": "random", "configurations": 1, "seed": 0},
    "seeds": [0],
    "limits": {"max_concurrent": 2, "max_failures": 1},
}


def write_space(path: Path, space: Mapping[str, Any] = FAKE, **changes: Any) -> Path:
    """Write a space, by default one of one-second trials, with top-level keys replaced (None
    removes one).
    """
    kept = {key: value for key, value in {**space, **changes}.items() if value is not None}
    path.write_text(yaml.safe_dump(kept, sort_keys=False), encoding="utf-8")
    return path


@contextmanager
def running(*arguments: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """``sweep ARGUMENTS`` with fake trials as a process, which does not outlive the block."""
    process = start(*arguments, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            kill(process)


def start(*arguments: object, step_s: float = 0.1, report: bool = False) -> subprocess.Popen[str]:
    """Start ``sweep ARGUMENTS`` with fake trials; it names the best and reports where wanted."""
    environment = {"LOPTUNE_FAKE_STEP_S": str(step_s)}
    if not report:
        environment["LOPTUNE_NO_REPORT"] = "1"
    return start_cli("tests.sweep.fake_driver", *arguments, environment=environment)


def finish(process: subprocess.Popen[str], timeout: float = 500) -> tuple[int, str, str]:
    """Wait for a sweep; returns exit code, output and error output."""
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def sweep(*arguments: object, **options: Any) -> tuple[int, str, str]:
    """Run ``sweep ARGUMENTS`` with fake trials to its end."""
    with running(*arguments, **options) as process:
        return finish(process)


def wait_until(condition: Callable[[], bool], timeout: float = 300, what: str = "") -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it did not come true.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what or "the condition did not come true")
        time.sleep(0.05)


def wait_until_gone(folder: SweepFolder, within: float = 60) -> None:
    """Wait until no process of a sweep is left.

    Raises:
        TimeoutError: some are still there.
    """
    wait_until(lambda: not sweep_processes(folder.root), within, "the sweep's processes to end")


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL the driver alone."""
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    for pipe in (process.stdout, process.stderr):
        if pipe:
            pipe.close()


def event_log(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of a sweep's event log."""
    return read_records(folder / "events.jsonl")


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """The results of a sweep by trial; asserts that no trial has two."""
    by_trial: dict[str, dict[str, Any]] = {}
    for record in event_log(folder):
        if record["event"] == "result":
            name = f"c{record['configuration']:03d}-s{record['seed']}"
            assert name not in by_trial, f"{name} has two results"
            by_trial[name] = record
    return by_trial


def states(folder: Path) -> dict[str, str]:
    """Return the state that each trial has ended in."""
    return {trial: result["state"] for trial, result in results(folder).items()}


def history(folder: Path, trial: str, event: str | None = None) -> list[dict[str, Any]]:
    """What a fake trial recorded of itself."""
    lines = read_records(folder / "trials" / trial / "fake.jsonl")
    return [line for line in lines if event in (None, line["event"])]


def metrics(folder: Path, trial: str) -> list[dict[str, Any]]:
    """The lines of a trial's ``metrics.jsonl``."""
    return read_records(folder / "trials" / trial / "metrics.jsonl")
