"""Compare a sweep of a command with Ray Tune and Optuna around the same training, as in Ray's
documentation.

    python -m benchmarks.sweep_against_tune           # eight trials of TRL on the tiny model
    python -m benchmarks.sweep_against_tune --idle    # trials that only report one number
    python -m benchmarks.sweep_against_tune --own     # loptune's own trainer compared with TRL

Both sides run two trials at a time, draw learning rate and loss type, and record every evaluation
in MLflow (SQLite). In loptune the trial records; in Tune its callback in the driver does, because
two processes with transformers' own callback would both try to create the tables of the store. The
sides run alternately, each with its own environment. A ratio is loptune divided by Tune. The first
sweep on a machine takes 1 s more, because it creates an empty MLflow store for the cache.

With --own, loptune's trainer takes as many steps with as many prompts, completions, new tokens and
evaluations as TRL's. Unlike TRL's trials, its trials write a checkpoint, so that they can be
resumed.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import yaml

from research.tables import print_rows

METRIC = "eval/reward"
AT_A_TIME = 2
TRIALS = 8
STEPS = 10
MARK = "LOPTUNE_BENCHMARK"
SAMPLE_S = 0.1
MEMORY_S = 1.0
PRELOAD = ["trl:GRPOTrainer", "trl:GRPOConfig", "examples.trl.train"]
Report = Callable[[int, Mapping[str, float]], None]


@dataclass
class Cost:
    """The resources of a command and of everything that it started."""

    wall_s: float
    cpu_s: float
    peak_mb: float  # peak of the proportional set sizes, in which shared pages count once


def train(config: Mapping[str, Any], folder: Path, report: Report) -> None:
    """Run the training of both sides: TRL's own trainer with two evaluations, or just one
    number.
    """
    if config["idle"]:
        report(1, {METRIC: config["learning_rate"]})
        return
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from examples.trl.train import is_right, puzzles
    from trainer.policy.architectures import TINY_FOLDER

    class Evaluations(TrainerCallback):
        def on_evaluate(
            self, args: Any, state: Any, control: Any, metrics: Mapping[str, float], **_: Any
        ) -> None:
            report(state.global_step, {METRIC: metrics["eval_reward"]})

    args = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        learning_rate=config["learning_rate"],
        loss_type=config["loss_type"],
        seed=config["seed"],
        max_steps=config["steps"],
        eval_strategy="steps",
        eval_steps=config["steps"] // 2,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=100,
        num_generations_eval=4,
        max_completion_length=64,
        save_strategy="no",
        report_to=["none"],
        disable_tqdm=True,
    )
    data = {"train_dataset": puzzles("train", 1000), "eval_dataset": puzzles("dev", 50)}
    GRPOTrainer(str(TINY_FOLDER), is_right, args, callbacks=[Evaluations()], **data).train()


def our_trial() -> None:
    """Run a trial of loptune's sweep."""
    folder = Path(os.environ["LOPTUNE_OUT"])

    def report(step: int, metrics: Mapping[str, float]) -> None:
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")

    train(
        json.loads(Path(os.environ["LOPTUNE_CONFIG"]).read_text(encoding="utf-8")), folder, report
    )


def our_sweep(fixed: Mapping[str, Any], trials: int, folder: Path) -> list[str]:
    space = {
        "name": "ours",
        "program": {
            "command": ["python", "-m", "benchmarks.sweep_against_tune", "--trial"],
            "defaults": {"learning_rate": 3e-4, "loss_type": "dapo", **fixed},
            "evaluations": 2,
            # idle trials need only Python's own modules
            "preload": ["json"] if fixed["idle"] else PRELOAD,
        },
        "objective": {"metric": METRIC, "window": 1},
        "parameters": {
            "learning_rate": {"loguniform": [1e-4, 1e-3]},
            "loss_type": {"choice": ["dapo", "dr_grpo"]},
        },
        "baselines": [{"learning_rate": 3e-4, "loss_type": "dapo"}],
        "search": {"sampler": "tpe", "configurations": trials // 2 - 1},
        "seeds": [0, 1],
        "limits": {"max_concurrent": AT_A_TIME},
    }
    return _sweep_command(space, folder)


def sweep_of_own_trainer(fixed: Mapping[str, Any], trials: int, folder: Path) -> list[str]:
    """Return the command of a sweep of loptune's trainer with the steps of `train`."""
    learning_rate = "optim.lr"
    aggregation = "algorithm.loss_aggregation"  # distinguishes TRL's dapo from dr_grpo
    baseline = {learning_rate: 3e-4, aggregation: "token_mean"}
    settings = {
        "rollout.prompts_per_step": 2,
        "rollout.group_size": 8,
        "rollout.max_new_tokens": 64,
        "optim.update_batch_size": 16,
        "algorithm.kl_coef": 0.0,
        "evaluation.every_steps": fixed["steps"] // 2,
        "evaluation.at_start": False,
        "evaluation.sets.dev.size": 50,
        "max_steps": fixed["steps"],
    }
    space = {
        "name": "ours",
        "trainer": {"preset": "tiny_kk", "overrides": settings},
        "objective": {"metric": "eval/accuracy", "window": 1},
        "parameters": {
            learning_rate: {"loguniform": [1e-4, 1e-3]},
            aggregation: {"choice": ["token_mean", "constant"]},
        },
        "baselines": [baseline],
        "search": {"sampler": "tpe", "configurations": trials // 2 - 1},
        "seeds": [0, 1],
        "limits": {"max_concurrent": AT_A_TIME},
    }
    return _sweep_command(space, folder)


def _sweep_command(space: Mapping[str, Any], folder: Path) -> list[str]:
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(space))
    return [
        sys.executable,
        "-m",
        "sweep",
        "run",
        str(path),
        "--runs-dir",
        str(folder),
        "--cpus",
        str(AT_A_TIME),
    ]


def their_sweep(fixed: Mapping[str, Any], trials: int, folder: Path) -> None:
    """Run Ray Tune as its documentation pages on Optuna and MLflow show."""
    import ray
    from ray import tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback
    from ray.tune.search.optuna import OptunaSearch

    # Import by module: functions of __main__ are pickled without the names of their annotations.
    from benchmarks.sweep_against_tune import train

    def objective(config: dict[str, Any]) -> None:
        train(
            {**fixed, **config},
            Path(tempfile.mkdtemp()),
            lambda step, metrics: tune.report({"step": step, **metrics}),
        )

    ray.init(num_cpus=AT_A_TIME, include_dashboard=False)
    tracking = MLflowLoggerCallback(
        tracking_uri=f"sqlite:///{folder / 'mlflow.db'}", experiment_name="theirs"
    )
    tune.Tuner(
        tune.with_resources(objective, {"cpu": 1}),
        param_space={
            "learning_rate": tune.loguniform(1e-4, 1e-3),
            "loss_type": tune.choice(["dapo", "dr_grpo"]),
            "seed": tune.choice([0, 1]),
        },
        tune_config=tune.TuneConfig(
            metric=METRIC,
            mode="max",
            search_alg=OptunaSearch(),
            num_samples=trials,
            max_concurrent_trials=AT_A_TIME,
        ),
        run_config=tune.RunConfig(
            name="theirs", storage_path=str(folder), callbacks=[tracking], verbose=1
        ),
    ).fit()


def proportional_mb(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().pss) / 2**20
    except psutil.Error:
        return 0.0


def measure(command: list[str], folder: Path) -> Cost:
    """Run a command, and sample every process that inherits its marker variable.

    Raises:
        RuntimeError: the command failed.
    """
    mark = uuid.uuid4().hex
    started = time.monotonic()
    peak = 0.0
    looked = 0.0
    marked = dict[int, psutil.Process]()
    seen = set[int]()
    cpu = dict[int, float]()
    environment = {
        **os.environ,
        MARK: mark,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.getcwd(),
        "RAY_worker_niceness": "0",  # as in a sweep; with Ray's 15, trials starve on busy cores
    }
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        while process.poll() is None:
            for pid in set(psutil.pids()) - seen:
                seen.add(pid)
                with contextlib.suppress(psutil.Error):
                    if psutil.Process(pid).environ().get(MARK) == mark:
                        marked[pid] = psutil.Process(pid)
            for pid, marked_process in list(marked.items()):
                try:
                    cpu[pid] = sum(marked_process.cpu_times()[:2])
                except psutil.Error:
                    del marked[pid]
            if time.monotonic() - looked > MEMORY_S:
                looked = time.monotonic()
                peak = max(peak, sum(map(proportional_mb, marked.values())))
            time.sleep(SAMPLE_S)
        seconds = time.monotonic() - started
        if process.returncode:
            log.seek(0)
            raise RuntimeError(
                f"{' '.join(command)} ended with {process.returncode}:\n{log.read()[-3000:]}"
            )
    return Cost(seconds, sum(cpu.values()), peak)


def compare(
    fixed: Mapping[str, Any], trials: int, rounds: int, own: bool = False
) -> dict[str, list[Cost]]:
    """Return the costs of both sides, which run alternately."""
    make_ours = sweep_of_own_trainer if own else our_sweep
    costs: dict[str, list[Cost]] = {"loptune": [], "Tune": []}
    for number in range(rounds):
        for name in list(costs)[:: 1 if number % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory() as folder:
                theirs = [
                    sys.executable,
                    "-m",
                    "benchmarks.sweep_against_tune",
                    "--tune",
                    folder,
                    json.dumps(fixed),
                ]
                ours = make_ours(fixed, trials, Path(folder))
                command = ours if name == "loptune" else [*theirs, "--trials", str(trials)]
                cost = measure(command, Path(folder))
            print(f"{name}, {trials} trials: {cost}", flush=True)
            costs[name].append(cost)
    return costs


def ratios(costs: Mapping[str, list[Cost]]) -> list[str]:
    """Return the ratio of each cost, as the median over pairs of successive runs."""
    pairs = list(zip(costs["loptune"], costs["Tune"], strict=True))
    every = [
        [getattr(a, quantity) / getattr(b, quantity) for a, b in pairs]
        for quantity in ("wall_s", "cpu_s", "peak_mb")
    ]
    return [f"{median(several):.2f}" for several in every]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trial", action="store_true", help="run as a trial of loptune's sweep")
    parser.add_argument("--tune", nargs=2, metavar=("FOLDER", "JSON"), help="run as Tune's driver")
    parser.add_argument("--idle", action="store_true")
    parser.add_argument("--own", action="store_true", help="use loptune's trainer instead of TRL")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.trial:
        our_trial()
    elif arguments.tune:
        their_sweep(json.loads(arguments.tune[1]), arguments.trials, Path(arguments.tune[0]))
    else:
        fixed = {"idle": arguments.idle, "steps": arguments.steps}
        counts = (2, arguments.trials) if arguments.idle else (arguments.trials,)
        rows = [
            [str(count), *ratios(compare(fixed, count, arguments.rounds, arguments.own))]
            for count in counts
        ]
        print_rows("loptune / Tune", ["trials", "wall time", "processor time", "peak memory"], rows)


if __name__ == "__main__":
    main()
