"""Start a test's job module as several connected ranks on this machine."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.paths import ROOT
from tests.ports import quiet_port
from tests.warm import warm
from trainer.parallel.ranks import exit_rank, leave_ranks


def start_ranks(
    module: str, world_size: int, job: dict[str, Any], folder: Path, cold: bool = False
) -> list[subprocess.Popen]:
    """Start ``python -m module FOLDER`` as ranks 0..N-1, each with its log in ``rank-R.log``.

    They are warm (`tests.warm`), unless ``cold``: most of the time of a short job would be imports.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.json").write_text(json.dumps(job))
    port = quiet_port()
    processes = []
    for rank in range(world_size):
        environment = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        with (folder / f"rank-{rank}.log").open("w") as log:
            words = ["-m", module, str(folder)]
            command = [sys.executable, *words] if cold else warm(*words)
            processes.append(
                subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
            )
    return processes


def wait_ranks(processes: list[subprocess.Popen], timeout: float) -> list[int | None]:
    """Exit codes; ranks that are still there after ``timeout`` seconds are killed and have none."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(0.2)
    codes = [process.poll() for process in processes]
    for process in processes:
        process.kill()
        process.wait()
    return codes


def run_ranks(
    module: str,
    world_size: int,
    job: dict[str, Any],
    folder: Path,
    timeout: float = 500,
    cold: bool = False,
) -> list[Any]:
    """Run the ranks to their end and return what each wrote to ``rank-R.json``."""
    codes = wait_ranks(start_ranks(module, world_size, job, folder, cold), timeout)
    logs = [(folder / f"rank-{rank}.log").read_text()[-4000:] for rank in range(world_size)]
    assert codes == [0] * world_size, f"exit codes {codes}\n" + "\n".join(logs)
    return read_results(folder, world_size)


def read_results(folder: Path, world_size: int) -> list[Any]:
    """What each rank wrote to ``rank-R.json``."""
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world_size)]


def be_a_rank(work: Callable[[Path, dict[str, Any]], Any]) -> None:
    """Be a rank: do the work on the job's folder and description, write its results to
    ``rank-R.json``, end.
    """
    folder = Path(sys.argv[1])
    results = work(folder, json.loads((folder / "job.json").read_text()))
    (folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(results))
    leave_ranks()
    exit_rank(0)
