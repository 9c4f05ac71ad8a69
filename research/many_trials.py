"""How fast do the costs of a sweep grow from 30 to 1,000 trials?

    python -m research.many_trials 30 100 300 1000 --written
    python -m research.many_trials 100 300 1000
    python -m research.many_trials 300 --nodes 3      # on a cluster simulated on this machine

With ``--written``, the folder of a finished sweep is written, with two seeds per configuration and
50 evaluations per trial, and the commands that read it are measured. The figures are CPU seconds
and peak memory of each command's own process, so they are also valid on a busy machine.
docs/development/overhead.md has the table.

Without it, a sweep runs under Ray, eight trials at a time. A trial has four steps that take no time
and two evaluations, recorded in MLflow (SQLite), so all of the time is the cost of the platform.
The peak is reached when the driver writes the report.

Measured on two cores of an Intel Xeon that other processes used, too:

    |trials|sweep [s]|s per trial|driver's CPU [s]|driver [MB]|status [s]|report [s]|[MB]|resume |
    |100   |66       |0.66       |0.161           |321 / 431  |2.5       |8.0       |5.1 |16.0 s |
    |300   |105      |0.35       |0.110           |323 / 446  |2.5       |10.5      |5.5 |20.7 s |
    |1000  |241      |0.24       |0.111           |331 / 605  |3.0       |18.5      |6.4 |35.6 s |

    on three simulated nodes, two cores of an AMD EPYC with two other busy processes:
    |300   |316      |1.05       |0.094           |345 / 423  |3.0       |7.3       |2.2 |16.1 s |

The first 25 s are the start of Ray and of 8 workers. The two memory figures are the maximum during
the first half, in which trials run, and the peak.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from dashboards.trial import TRAINING_CURVES
from research.tables import print_rows
from sweep.record.folder import sweep_folder
from tests.sweep.ended_sweeps import write_sweep

AT_A_TIME = 8
EVALUATIONS = 50  # number of evaluations of a written trial, one every second step
PROBLEMS = 100  # number of problems of an evaluation
OTHER_METRICS = 40  # other metrics per step, so that a line is as long as in the preset tiny_kk
SAMPLE_S = 0.05
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "LOPTUNE_FAKE_STEP_S": "0"}


@dataclass
class Command:
    """The resources that a command used."""

    seconds: float
    peak_mb: float
    half_mb: float  # peak memory in the first half of its time
    cpu_s: float  # CPU time of the command and of the children that it waited for
    out: str


def run(*arguments: object, module: str = "tests.sweep.fake_driver") -> Command:
    """Run a `sweep` command to its end, by default with simulated trials, and sample its memory.

    Raises:
        RuntimeError: the command failed.
    """
    started = time.monotonic()
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=ENVIRONMENT)
        watched = psutil.Process(process.pid)
        samples = [0]
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        while not ended:
            with suppress(psutil.Error):
                samples.append(watched.memory_info().rss)
            time.sleep(SAMPLE_S)
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        code = process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - started
        cpu_s = usage.ru_utime + usage.ru_stime
        out.seek(0)
        text = out.read()
    if code:
        raise RuntimeError(f"{' '.join(command)} ended with {code}:\n{text[-2000:]}")
    half = samples[: len(samples) // 2 + 1]
    return Command(seconds, max(samples) / 2**20, max(half) / 2**20, cpu_s, text)


@contextmanager
def where(nodes: int) -> Iterator[list[str]]:
    """Yield the options that set where the trials run: on this machine, or on simulated nodes."""
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
    """Run a sweep of ``trials`` trials in a folder, measure the commands that read it, and return a
    row of the table.
    """
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


def write_trials(trials: int, folder: Path) -> str:
    """Write the folder of a finished sweep of ``trials`` trials, and return its name."""
    chance = random.Random(trials)
    name = f"many-{trials}"
    numbers = range(trials // 2)
    levels = {number: 0.5 + chance.gauss(0, 0.02) for number in numbers}
    scores = {
        number: {seed: level + chance.gauss(0, 0.02) for seed in (0, 1)}
        for number, level in levels.items()
    }
    search = {"sampler": "tpe", "configurations": len(numbers) - 1}
    baselines = [{"algorithm.ar_alpha": 0.0}]
    overrides = {"max_steps": 2 * EVALUATIONS, "tracking.offline": True}
    trainer = {"preset": "tiny_kk", "overrides": overrides}
    space = {"search": search, "baselines": baselines, "trainer": trainer}
    write_sweep(folder, name, scores, trials, seeds=[0, 1], **space)
    for number, seeds in scores.items():
        for seed, score in seeds.items():
            write_records(sweep_folder(folder, name).trial(f"c{number:03d}-s{seed}"), score, chance)
    return name


def write_records(run_dir: Path, score: float, chance: random.Random) -> None:
    """Write the metrics and correctness records of a trial whose accuracy rises to a score."""
    names = [*TRAINING_CURVES, *(f"tokens/other/{place}" for place in range(OTHER_METRICS))]
    metrics = []
    correctness = []
    for step in range(1, 2 * EVALUATIONS + 1):
        record = {"step": step, "time": 1e9 + step, "time/step": 1.0}
        record |= {name: chance.random() for name in names}
        if step % 2 == 0:
            accuracy = score * step / (2 * EVALUATIONS)
            record |= {"eval/accuracy": accuracy, "time/evaluation": 1.0}
            correct = [int(chance.random() < accuracy) for _ in range(PROBLEMS)]
            sets = {"dev": {"completions": 1, "correct": correct}}
            correctness.append(json.dumps({"step": step, "sets": sets}) + "\n")
        metrics.append(json.dumps(record) + "\n")
    (run_dir / "metrics.jsonl").write_text("".join(metrics))
    (run_dir / "correctness.jsonl").write_text("".join(correctness))


def measure_written(trials: int, folder: Path) -> list[str]:
    """Measure three commands that read the folder of a finished sweep, and return a row of the
    table.
    """
    name = write_trials(trials, folder)
    row = [str(trials)]
    for verb, more in (("status", ()), ("report", ()), ("resume", ("--cpus", 2))):
        command = run(verb, name, "--runs-dir", folder, *more, module="sweep")
        row.append(f"{command.cpu_s:.1f} s, {command.peak_mb:.0f} MB")
    return row


WRITTEN_HEADINGS = ["trials", "status", "report", "resume"]
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
    parser.add_argument(
        "--written", action="store_true", help="write folders of finished sweeps; no Ray"
    )
    arguments = parser.parse_args()
    rows = []
    for trials in arguments.trials:
        if arguments.written:
            with tempfile.TemporaryDirectory(prefix="many-trials-") as name:
                rows.append(measure_written(trials, Path(name)))
            title = f"ended sweeps of {EVALUATIONS} evaluations a trial, read"
            print_rows(title, WRITTEN_HEADINGS, rows)
            continue
        with (
            tempfile.TemporaryDirectory(prefix="many-trials-") as folder,
            where(arguments.nodes) as place,
        ):
            rows.append(measure(trials, Path(folder), place))
            print_rows("simulated trials, eight at a time", HEADINGS, rows)


if __name__ == "__main__":
    main()
