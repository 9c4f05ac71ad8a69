"""Sweeps of 100, 300 and 1,000 simulated trials, eight at a time: what grows, and how fast.

    python -m benchmarks.many_trials 100 300 1000
    python -m benchmarks.many_trials 300 --nodes 3      # of a cluster simulated on this machine

A trial has four steps of no length and two evaluations, recorded in MLflow (SQLite), so that all of
the time is the platform's own. The peak is the report's, which the driver writes at the end.

Measured on two cores of an Intel Xeon that other work used too:

    | trials | sweep [s] | a trial [s] | driver's CPU [s] | driver [MB] | status [s] | report [s] |
    [MB] | resume | | 100    | 66        | 0.66        | 0.161            | 321 / 431   | 2.5
    | 8.0        | 5.1  | 16.0 s | | 300    | 105       | 0.35        | 0.110            | 323 / 446
    | 2.5        | 10.5       | 5.5  | 20.7 s | | 1000   | 241       | 0.24        | 0.111
    | 331 / 605   | 3.0        | 18.5       | 6.4  | 35.6 s |

    on three simulated nodes, while other programs kept 40 processes waiting for the two cores:
    | 60     | 494       | 8.24        | 0.297            | 368 / 417   | 59.3       | 43.3       |
    2.0  | 109.6 s |

The first 25 s are the start of Ray and of 8 workers. Memory is that of the first half, in which
trials run, and the peak.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from benchmarks.tables import print_rows

AT_A_TIME = 8
SAMPLE_S = 0.5
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "LOPTUNE_FAKE_STEP_S": "0"}


@dataclass
class Command:
    """What one command took."""

    seconds: float
    peak_mb: float
    half_mb: float  # largest in the first half of its time
    cpu_s: float  # processor time of its own process, without Ray's and the trials'
    out: str


def run(*arguments: object) -> Command:
    """A `sweep` command with simulated trials to its end, its memory sampled.

    Raises:
        RuntimeError: it failed.
    """
    started = time.monotonic()
    command = [sys.executable, "-m", "tests.sweep.fake_driver", *map(str, arguments)]
    with (
        tempfile.TemporaryFile("w+") as out,
        subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=ENVIRONMENT) as process,
    ):
        watched = psutil.Process(process.pid)
        samples = [0]
        cpu_s = 0.0
        while process.poll() is None:
            try:
                samples.append(watched.memory_info().rss)
                cpu_s = sum(watched.cpu_times()[:2])
            except psutil.Error:
                break
            time.sleep(SAMPLE_S)
        code = process.wait()
        seconds = time.monotonic() - started
        out.seek(0)
        text = out.read()
    if code:
        raise RuntimeError(f"{' '.join(command)} ended with {code}:\n{text[-2000:]}")
    half = samples[: len(samples) // 2 + 1]
    return Command(seconds, max(samples) / 2**20, max(half) / 2**20, cpu_s, text)


@contextmanager
def where(nodes: int) -> Iterator[list[str]]:
    """The options that say where the trials run: on this machine, or on so many simulated nodes."""
    if not nodes:
        yield ["--cpus", str(AT_A_TIME)]
        return
    os.environ |= {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    ENVIRONMENT.update(os.environ, LOPTUNE_FAKE_STEP_S="0")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": -(-AT_A_TIME // nodes), "object_store_memory": 80 * 2**20}
    cluster = Cluster(
        initialize_head=True, head_node_args={**node, "num_cpus": 0, "include_dashboard": False}
    )
    for _ in range(nodes):
        cluster.add_node(**node)
    try:
        yield ["--address", cluster.address]
    finally:
        cluster.shutdown()


def measure(trials: int, folder: Path, place: list[str]) -> list[str]:
    """Run a sweep of so many trials in a folder and look at it; returns a row of the table."""
    space = {
        "name": f"many-{trials}",
        "trainer": {
            "preset": "tiny_kk",
            "overrides": {"max_steps": 4, "evaluation.every_steps": 2, "checkpoint.every_steps": 4},
        },
        "parameters": {
            "algorithm.ar_alpha": {"uniform": [0.0, 0.5]},
            "optim.lr": {"loguniform": [1e-5, 1e-3]},
        },
        "baselines": [{"algorithm.ar_alpha": 0.0}],
        "search": {"sampler": "random", "configurations": trials - 1, "seed": 0},
        "limits": {"max_concurrent": AT_A_TIME},
    }
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(space))
    here = ("--runs-dir", folder)
    sweep = run("run", path, *here, *place)
    status = run("status", space["name"], *here)
    report = run("report", space["name"], *here)
    resume = run("resume", space["name"], *here, *place)
    size = (folder / str(space["name"]) / "report" / "report.html").stat().st_size
    return [
        str(trials),
        f"{sweep.seconds:.0f}",
        f"{sweep.seconds / trials:.2f}",
        f"{sweep.cpu_s / trials:.3f}",
        f"{sweep.half_mb:.0f} / {sweep.peak_mb:.0f}",
        f"{status.seconds:.1f}",
        f"{report.seconds:.1f}",
        f"{size / 1e6:.1f}",
        f"{resume.seconds:.1f}",
    ]


HEADINGS = [
    "trials",
    "sweep [s]",
    "a trial [s]",
    "driver's CPU a trial [s]",
    "driver, first half / peak [MB]",
    "status [s]",
    "report [s]",
    "report [MB]",
    "resume [s]",
]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trials", nargs="+", type=int)
    parser.add_argument("--nodes", type=int, default=0)
    arguments = parser.parse_args()
    rows = []
    for trials in arguments.trials:
        with (
            tempfile.TemporaryDirectory(prefix="many-trials-") as folder,
            where(arguments.nodes) as place,
        ):
            rows.append(measure(trials, Path(folder), place))
            print_rows("simulated trials, eight at a time", HEADINGS, rows)


if __name__ == "__main__":
    main()
