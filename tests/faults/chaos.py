"""Random faults for a sweep, which must end as one that nobody disturbed.

    # about 15 minutes on two cores; also: make chaos SEED=0
    python -m tests.faults.chaos --seed 0 --faults 20

Kills the driver, a rank, Ray's raylet and control server, and MLflow for up to a minute; stops a
process for some seconds; removes the lock; renames the folder or the event log until the driver has
ended; takes a rank's memory or its open files away; damages the newest checkpoint of a trial whose
rank it kills; kills what scores; sets the clock that Python reads back by an hour; fills the disk
where root may mount a small one. Resumes whenever the sweep has stopped. ``--kinds`` names the
faults, of which "no MLflow", which ends it until the sweep has ended, comes last. Trials are real
ones of the embedded policy, with ``--fake`` simulated ones.
"""

import argparse
import contextlib
import hashlib
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from loptune.files import read_records
from sweep.driver.guard import sweep_processes
from sweep.record.folder import sweep_folder
from tests.paths import ROOT
from tests.run_cli import start_cli
from tests.sweep.harness import results, write_space
from tests.trainer.tracking.store import Server, history, runs_of

NAME = "fake"  # of the sweep
DISK_MB = 64
# Python's alone: Debian's faketime keeps Ray's own processes from starting.
CLOCK = """
import time
from pathlib import Path
_now = time.time
_added = Path(__file__).with_name("added")
time.time = lambda: _now() + float(_added.read_text())
"""
# What the guard says after a driver that had no chance to say it: killed, or ended by Ray's own
# code with code 1.
BY_FORCE = "[driver-killed]"


@dataclass
class Chaos:
    """A sweep under random faults."""

    root: Path
    random: random.Random
    server: Server
    fake: bool
    disk: bool  # whether ``runs`` is a disk of its own, small enough to be filled
    happened: list[str] = field(default_factory=list)
    outage: threading.Timer | None = None  # brings MLflow back
    killed_alone: bool = False  # whether the driver was killed before it had started a process

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    def run(self, kinds: Sequence[str]) -> None:
        """Run the sweep to its end, with these faults on the way.

        Raises:
            AssertionError: it stopped for good, or ended before all faults had happened.
        """
        space = space_of(self.root, self.server.uri, self.fake)
        left = list(kinds)
        arguments: list[object] = ["run", space]
        environment = self._set_clock(0.0)
        for _ in range(len(left) + 10):
            with process(self.fake, arguments, self.runs, environment) as driver:
                while driver.poll() is None and left:
                    self._pause(driver)
                    if driver.poll() is None and self._strike(left[0], driver):
                        self.happened.append(left.pop(0))
                out, err = driver.communicate(timeout=1200)
            if driver.returncode == 0:
                assert not left, f"the sweep ended before {left}: give it more steps"
                return
            # no sweep: its folder was away before the driver had looked for it
            resumable = driver.returncode == 4 or BY_FORCE in err or "no sweep named" in err
            resumable |= self.killed_alone and driver.returncode == -signal.SIGKILL
            assert resumable, (
                f"exit code {driver.returncode} after {self.happened}:\n{out[-2000:]}\n{err}"
            )
            (self.runs / "ballast").unlink(missing_ok=True)
            has_begun = (self.runs / NAME / "space.lock.yaml").exists()
            arguments = ["resume", NAME] if has_begun else ["run", space]
        raise AssertionError(f"resumed again and again, and not done: {out[-2000:]}\n{err}")

    def kinds(self) -> list[str]:
        """The faults that are possible here."""
        possible = ["driver", "rank", "raylet", "control server", "MLflow"]
        possible += ["stopped", "lock", "event log", "folder", "files", "clock"]
        possible += [] if self.fake else ["memory", "checkpoint", "scorer"]
        return possible + (["disk"] if self.disk else [])

    def _set_clock(self, added: float) -> dict[str, str]:
        """Add seconds to the time of all that a driver starts, by these variables."""
        folder = self.root / "clock"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(CLOCK)
        (folder / "added.new").write_text(str(added))
        (folder / "added.new").rename(folder / "added")
        return {"PYTHONPATH": f"{folder}:{ROOT}"}

    def _pause(self, driver: "subprocess.Popen[str]") -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(timeout=self.random.uniform(2.0, 6.0))

    def _strike(self, kind: str, driver: "subprocess.Popen[str]") -> bool:
        """Let something happen; False where there is nothing yet that it could happen to."""
        root = sweep_folder(self.runs, NAME).root
        strike: dict[str, Callable[[], bool]] = {
            "driver": lambda: self._kill_driver(driver),
            "rank": lambda: _kill(self._rank()),
            "raylet": lambda: _kill(self._daemons("raylet")),
            "control server": lambda: _kill(self._daemons("gcs_server")),
            "MLflow": self._outage,
            "disk": self._fill,
            "no MLflow": lambda: self._end_mlflow(driver),
            "memory": self._starve,
            "checkpoint": self._damage,
            "scorer": self._kill_scorer,
            "clock": lambda: bool(self._set_clock(-3600.0)),
            "files": self._take_files,
            "stopped": lambda: self._stop(driver),
            "lock": lambda: _unlink(root / "lock"),
            "event log": lambda: self._rename(root / "events.jsonl", driver),
            "folder": lambda: self._rename(root, driver),
        }
        return strike[kind]()

    def _rank(self) -> list[psutil.Process]:
        processes = sweep_processes(sweep_folder(self.runs, NAME).root)
        ranks = [
            process
            for process in processes
            if "RankWorker.train_until_evaluation" in _command(process)
        ]
        return self.random.sample(ranks, min(1, len(ranks)))

    def _daemons(self, name: str) -> list[psutil.Process]:
        return [
            candidate
            for candidate in sweep_processes(sweep_folder(self.runs, NAME).root)
            if _name(candidate) == name
        ]

    def _outage(self) -> bool:
        self.end_outage()  # of before
        self.server.kill()
        seconds = self.random.uniform(2.0, 6.0) if self.fake else self.random.uniform(10.0, 60.0)
        self.outage = threading.Timer(seconds, self.server.start)
        self.outage.start()
        return True

    def end_outage(self) -> None:
        """Wait until MLflow is back."""
        if self.outage is not None:
            self.outage.join()

    def _fill(self) -> bool:
        fill(self.runs)
        return True

    def _starve(self) -> bool:
        """Give a rank no more memory than it has."""
        ranks = self._rank()
        for rank in ranks:
            with contextlib.suppress(psutil.Error):
                rank.rlimit(psutil.RLIMIT_AS, (rank.memory_info().vms,) * 2)
        return bool(ranks)

    def _damage(self) -> bool:
        """Cut a file of a trial's newest checkpoint or flip a bit of it, and kill the rank."""
        for rank in self._rank():
            rank.suspend()
            run_dir = Path(f"/proc/{rank.pid}/fd/2").resolve().parent  # where its errors go
            checkpoints = sorted(run_dir.glob("checkpoints/step-*"), key=_step)
            if len(checkpoints) > 1:
                shard = self.random.choice([*checkpoints[-1].glob("*.safetensors")])
                content = bytearray(shard.read_bytes())
                place = self.random.randrange(len(content))
                content[place] ^= 1
                shard.write_bytes(content[: self.random.choice([place, None])])
                return _kill([rank])
            rank.resume()
        return False

    def _kill_driver(self, driver: "subprocess.Popen[str]") -> bool:
        """Kill the driver. Before its guard is there, nobody can say that it was killed."""
        self.killed_alone = not sweep_processes(sweep_folder(self.runs, NAME).root)
        return _kill([psutil.Process(driver.pid)])

    def _kill_scorer(self) -> bool:
        """Stop a process that scores, so that a batch is under way, and kill it."""
        below = [child for rank in self._rank() for child in rank.children(recursive=True)]
        scorers = [child for child in below if "rewards.worker" in _command(child)][-1:]
        for scorer in scorers:
            scorer.suspend()
            time.sleep(2.0)  # less than the limit of a completion
        return _kill(scorers)

    def _end_mlflow(self, driver: "subprocess.Popen[str]") -> bool:
        """Kill MLflow for good, as the driver sees it."""
        self.end_outage()
        self.server.kill()
        driver.wait(timeout=600)
        self.server.start()
        return True

    def _take_files(self) -> bool:
        """Let a rank open no more files than it has open."""
        ranks = self._rank()
        for rank in ranks:
            with contextlib.suppress(psutil.Error):
                rank.rlimit(psutil.RLIMIT_NOFILE, (rank.num_fds(),) * 2)
        return bool(ranks)

    def _stop(self, driver: "subprocess.Popen[str]") -> bool:
        """Stop the driver or a process of it for some seconds."""
        processes = [
            *sweep_processes(sweep_folder(self.runs, NAME).root),
            psutil.Process(driver.pid),
        ]
        stopped = self.random.choice(processes)
        with contextlib.suppress(psutil.Error):
            stopped.suspend()
            time.sleep(self.random.uniform(2.0, 8.0))
            stopped.resume()
        return True

    def _rename(self, path: Path, driver: "subprocess.Popen[str]") -> bool:
        """Take a file or folder away until the driver has ended, which it must notice."""
        if not path.exists():
            return False
        moved = path.with_name(f"{path.name}-moved")
        path.rename(moved)
        driver.wait(timeout=300)
        assert not path.exists(), f"{path} was made anew"
        moved.rename(path)
        return True


def space_of(folder: Path, uri: str, fake: bool) -> Path:
    """Four trials of some steps, two of them at a time; their experiment in MLflow is named as the
    folder is.
    """
    steps = 30 if fake else 60
    overrides: dict[str, Any] = {
        "max_steps": steps,
        "evaluation.every_steps": 2 if fake else 3,
        "checkpoint.every_steps": 2 if fake else 3,
        "tracking.uri": uri,
        "tracking.experiment": folder.name,
    }
    if not fake:
        overrides |= {
            "rollout.prompts_per_step": 4,
            "rollout.group_size": 4,
            "rollout.max_new_tokens": 64,
            "optim.update_batch_size": 8,
            "evaluation.completions_per_problem": 1,
            "evaluation.sets.dev.limit": 16,
        }
    return write_space(
        folder / "space.yaml",
        trainer={"preset": "tiny_kk", "overrides": overrides},
        seeds=[0, 1],
        search={"sampler": "random", "configurations": 0, "seed": 0},
        # a rank that may take no more memory may hang
        limits={"max_concurrent": 2, "max_failures": 100, "stall_timeout_s": 120},
    )


@contextmanager
def process(
    fake: bool, arguments: list[object], runs: Path, environment: Mapping[str, str]
) -> Iterator["subprocess.Popen[str]"]:
    """``sweep ARGUMENTS``, which does not outlive the block."""
    module = "tests.sweep.fake_driver" if fake else "sweep"
    # read where trials are simulated
    environment = {"LOPTUNE_FAKE_STEP_S": "0.2", "LOPTUNE_NO_REPORT": "1", **environment}
    with start_cli(
        module, *arguments, "--runs-dir", runs, "--cpus", 2, environment=environment
    ) as driver:
        try:
            yield driver
        finally:
            driver.kill()


def state_of(runs: Path, uri: str, experiment: str, name: str = NAME) -> dict[str, dict[str, Any]]:
    """What a sweep has ended with: per trial its result, its metrics by step, in file and MLflow,
    and its weights.

    Raises:
        AssertionError: a trial or a step is there twice, or MLflow and the file differ.
    """
    states: dict[str, dict[str, Any]] = {}
    recorded = runs_of(uri, experiment)
    by_trial = {run.data.tags.get("loptune.trial"): run for run in recorded}
    assert len(recorded) == len(by_trial), "a trial has two runs in MLflow"
    assert {run.info.status for run in recorded} == {"FINISHED"}
    for trial, result in results(runs / name).items():
        folder = runs / name / "trials" / trial
        lines = read_records(folder / "metrics.jsonl")
        for metric in ("rollout/reward", "eval/accuracy"):
            values = [(line["step"], line[metric]) for line in lines if metric in line]
            assert [step for step, _ in values] == sorted({step for step, _ in values}), (
                f"{trial}: steps twice"
            )
            assert history(uri, by_trial[trial].info.run_id, metric) == values, (
                f"{trial}: MLflow differs"
            )
        last = max((folder / "checkpoints").glob("step-*"), key=_step)
        weights = next(
            path for path in (last / "model.safetensors", last / "state.json") if path.exists()
        )
        states[trial] = {
            "result": (result["state"], result["score"], result["step"]),
            "metrics": [
                {k: v for k, v in line.items() if k.startswith(("eval/", "rollout/r"))}
                for line in lines
            ],
            "weights": hashlib.sha256(weights.read_bytes()).hexdigest(),
        }
    return states


def compare(
    root: Path, seed: int, *, fake: bool, faults: int = 0, kinds: Sequence[str] = ()
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Run a sweep undisturbed and one under faults.

    Args:
        root: an empty folder.
        seed: of the random choices.
        fake: whether trials are simulated.
        faults: how many, of kinds that are drawn.
        kinds: which ones, in this order, instead of drawn ones.

    Returns:
        The faults that happened, and the state in which both have ended.

    Raises:
        AssertionError: the states differ.
    """
    server = Server(root / "server")
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        stack.callback(server.kill)
        server.start()
        quiet = Chaos(_folder(root / "undisturbed"), chance, server, fake, disk=False)
        quiet.run([])
        expected = state_of(quiet.runs, server.uri, "undisturbed")
        folder = _folder(root / "disturbed")
        disk = stack.enter_context(small_disk(folder / "runs"))
        chaos = Chaos(folder, chance, server, fake, disk)
        stack.callback(chaos.end_outage)
        chaos.run(kinds or [chance.choice(chaos.kinds()) for _ in range(faults)])
        chaos.end_outage()
        state = state_of(chaos.runs, server.uri, "disturbed")
    assert state == expected, f"after {chaos.happened}"
    return chaos.happened, state


def fill(folder: Path) -> Path:
    """Write a file until nothing more fits on the folder's disk; returns the file."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast


@contextmanager
def small_disk(folder: Path, megabytes: int = DISK_MB) -> Iterator[bool]:
    """Mount a disk there, if this user may; whether it is there."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "loptune", str(folder)]
    mounted = False
    with contextlib.suppress(FileNotFoundError):
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _folder(path: Path) -> Path:
    (path / "runs").mkdir(parents=True)
    return path


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _unlink(path: Path) -> bool:
    existed = path.exists()
    path.unlink(missing_ok=True)
    return existed


def _kill(processes: list[psutil.Process]) -> bool:
    for target in processes:
        with contextlib.suppress(psutil.Error):
            target.kill()
    return bool(processes)


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return str(process.name())
    return ""


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def main() -> None:
    """Run one comparison and print what happened."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--kinds", nargs="*", default=(), help="these faults, not drawn ones")
    parser.add_argument("--fake", action="store_true", help="simulated trials")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="loptune-chaos-") as root:
        happened, state = compare(
            Path(root),
            arguments.seed,
            fake=arguments.fake,
            faults=arguments.faults,
            kinds=arguments.kinds,
        )
    print(f"seed {arguments.seed}: {', '.join(happened)}")
    seconds = time.monotonic() - started
    print(f"{len(state)} trials ended as undisturbed, after {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
