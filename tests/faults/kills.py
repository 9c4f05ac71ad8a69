"""SIGKILL at random points of sweeps, confirmations and campaigns, until all are done.

    python -m tests.faults.kills --kills 200    # also: make chaos
    # the same under Ray, with trainings as processes: some seconds a kill
    python -m tests.faults.kills --kills 20 --ray
    # eight open proposals that train the built-in model, under Ray: about a minute a kill
    python -m tests.faults.kills --kills 2 --jobs tiny-swarm

Each job is done once undisturbed, and then again and again while its commands are killed: the
command alone, the sweep that it started alone, or everything. Half of the kills come at any time,
half within some milliseconds after an event was written. Whoever is killed is started again as a
user would. At the end the results are those of the undisturbed job (nothing is lost), no result is
recorded twice (nothing counts twice), and no training was started after its result was recorded.

A training is a line in a log, some milliseconds, and a score computed from its settings; with a
small learning rate one seed in four fails. Without ``--ray`` it runs in the driver itself, which is
a fork of this process: all other code of the driver is the real one. The job ``tiny-swarm`` always
runs under Ray, and trains the built-in model.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any

import psutil
import yaml

from loptune.files import read_records
from tests.faults.killed_program import LOG, train
from tests.run_cli import ENVIRONMENT

PROGRAM = Path(__file__).with_name("killed_program.py")
MOST_FAILURES = 20  # of a command in a row, without a kill
LIMIT_S = 1800  # of a command, which is said to hang after it
KEPT, DISCARDED = 0.2, 0.05  # learning rates of proposals, from 0.1
NAME = "toy"
# The eight proposals of a swarm are open together.
SWARM = tuple(f"lr={rate}" for rate in (0.2, 0.05, 0.22, 0.06, 0.07, 0.08, 0.09, 0.3))
TINY_SWARM = tuple(f"optim.lr={rate}" for rate in (1e-5, 3e-5, 2e-4, 4e-4, 5e-4, 1e-3, 2e-3, 1e-2))
TOY = {
    "name": NAME,
    "program": {
        "command": ["python", "toy.py", "{lr}", "{seed}"],
        "defaults": {"lr": 0.1},
        "tracking": {"offline": True},
    },
    "objective": {"metric": "acc", "window": 1, "worthwhile": 0.02},
    "parameters": {"lr": {"choice": [0.1, 0.15, 0.2, 0.25]}},
    "baselines": [{"lr": 0.1}],
    "search": {"configurations": 3, "sampler": "random", "seed": 0},
    "seeds": [0, 1, 2, 4],
    "limits": {"max_concurrent": 2, "max_failures": 0},
}
TINY = {
    "name": "tiny",
    "trainer": {
        "preset": "tiny_kk",
        "overrides": {
            "max_steps": 1,
            "rollout.prompts_per_step": 2,
            "rollout.group_size": 2,
            "optim.update_batch_size": 4,
            "evaluation.completions_per_problem": 2,
            "evaluation.sets": {"dev": {"split": "dev", "size": 8}},
        },
    },
    "objective": {"metric": "eval/accuracy", "window": 1},
    "baselines": [{}],
    "search": {"configurations": 0},
}

Run = tuple[str, int]  # settings as JSON, and seed


@dataclass
class Command:
    """A running command of loptune, and everything that it started."""

    process: psutil.Process
    output: Path
    code: int | None = None

    def ended(self) -> bool:
        """Whether it has exited; its exit code is then in `code`."""
        if self.code is None:
            pid, status = os.waitpid(self.process.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def kill(self, whom: str) -> None:
        """Kill the command, the sweep that it started, or everything, children first."""
        with contextlib.suppress(psutil.NoSuchProcess):
            below = self.process.children(recursive=True)
            sweeps = [child for child in self.process.children() if not _is_guard(child)]
            chosen = {"command": [self.process], "sweep": sweeps, "all": [*below, self.process]}
            for process in chosen[whom] or [self.process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def _is_guard(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(word.endswith("guard.py") for word in process.cmdline())
    return False


@dataclass
class Job:
    """Commands that lead to a result, and how to read it."""

    name: str
    next_command: Callable[[Path], list[str] | None]  # None: the job is done
    result: Callable[[Path], Any]
    whom: tuple[str, ...] = ("command", "all")
    space: Mapping[str, Any] = field(default_factory=lambda: TOY)
    needs_ray: bool = False


@dataclass
class Kills:
    """What was done to the jobs of one kind."""

    jobs: int = 0
    commands: int = 0
    kills: collections.Counter[str] = field(default_factory=collections.Counter)
    trainings: int = 0
    cut: int = 0  # trainings that a kill ended, and that were started again


def start(words: list[str], folder: Path, with_ray: bool) -> Command:
    """Start ``sweep WORDS`` in a folder."""
    output = folder / "output.txt"
    with output.open("w") as file:
        if with_ray:
            line = [sys.executable, "-P", "-m", "sweep", *words]
            environment = {**os.environ, **ENVIRONMENT, LOG: str(folder / "log.jsonl")}
            pid = subprocess.Popen(
                line,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            ).pid
        else:
            pid = _forked(words, folder, file.fileno())
    return Command(psutil.Process(pid), output)


def _forked(words: list[str], folder: Path, output: int) -> int:
    """Start ``sweep WORDS`` in a fork of this process, which has imported everything."""

    def work() -> int:
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(folder)
        os.environ[LOG] = str(folder / "log.jsonl")
        from sweep.cli import main

        return main(words)

    return _fork(work)


def _fork(work: Callable[[], int]) -> int:
    """Start a fork of this process that exits with what ``work`` returns; return its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        code = work()
        sys.stdout.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


class _ForkedPool:
    """The process of a campaign's runs as a fork of this process, with the part of
    `subprocess.Popen` that `sweep.gate.pool` uses.
    """

    def __init__(self, line: list[str], *, cwd: Path, env: Mapping[str, str], **_: object) -> None:
        requests, send = os.pipe()
        receive, answers = os.pipe()

        def work() -> int:
            os.close(send)
            os.close(receive)
            os.dup2(requests, 0)
            os.dup2(answers, 1)
            os.chdir(cwd)
            os.environ.update(env)
            from loptune.terminal.main import run_main
            from sweep.driver.pool import serve

            return run_main(lambda: serve(line[-1]))

        self._pid = _fork(work)
        os.close(requests)
        os.close(answers)
        self.stdin: IO[bytes] = os.fdopen(send, "wb")
        self.stdout: IO[bytes] = os.fdopen(receive, "rb")

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)


class _InstantTrial:
    """A slot of the campaign's process, in which a training takes milliseconds."""

    def __init__(self) -> None:
        self._result: dict[str, Any] = {}

    def take(self, plan: Any, config: Mapping[str, Any]) -> None:
        self._result = _result(plan.spec, config)

    def step(self) -> dict[str, Any]:
        return self._result


def _result(spec: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Train, and return the result that a trial reports to Tune."""
    from tests.sweep.search.instant_sweeps import ended

    settings = config["overrides"]
    rate = spec.program.values(settings, ["lr"])["lr"]
    score = train(rate, settings["seed"])
    if score is None:
        return {"reason": "this seed fails", "by_settings": True, "done": True}
    return ended(score)


def without_ray() -> None:
    """Replace Ray and the process of a trial, here and in forks: trainings run in the driver."""
    import ray  # noqa: F401

    import sweep.driver.pool
    import sweep.gate.pool
    import sweep.gate.runs
    import sweep.record.results
    import sweep.winner.ending
    from sweep.driver import run
    from sweep.programs import command as _command  # noqa: F401
    from sweep.trials.cluster import local_node
    from tests.sweep.search.instant_sweeps import drain

    @contextlib.contextmanager
    def nodes(*_: object) -> Iterator[list[Any]]:
        yield [local_node(2)]

    def fit(tuner: object, searcher: Any, control: object) -> None:
        drain(searcher, result=lambda suggestion: _result(searcher.spec, suggestion))

    replace(
        run,
        ray_running=nodes,
        ray_watchdog=lambda control: contextlib.nullcontext(),
        _tuner=lambda *_: None,
        _fit=fit,
        _write_report=lambda *_: (None, ""),
    )
    replace(sweep.driver.pool, PooledTrial=_InstantTrial)
    pipes = {"PIPE": subprocess.PIPE}
    replace(sweep.gate.pool, subprocess=SimpleNamespace(Popen=_ForkedPool, **pipes))


def replace(module: ModuleType, **values: object) -> None:
    """Replace attributes of a module, which must have them."""
    for name, value in values.items():
        assert hasattr(module, name), f"{module.__name__} has no {name}"
        setattr(module, name, value)


def write_space(folder: Path, space: Mapping[str, Any]) -> None:
    """Write the program and a search space."""
    shutil.copy(PROGRAM, folder / "toy.py")
    (folder / "space.yaml").write_text(yaml.safe_dump(dict(space), sort_keys=False))


def records(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that may not be there yet."""
    return read_records(path) if path.exists() else []


def trials_of(folder: Path) -> dict[Run, tuple[str, float | None]]:
    """The result of each run of a sweep, by settings and seed.

    Raises:
        AssertionError: a run has two results, or was started after its result, without a retry
            between them.
    """
    results: dict[Run, tuple[str, float | None]] = {}
    for run, event in events_of_runs(folder):
        if event["event"] == "retry":
            del results[run]
        if event["event"] == "trial":
            assert run not in results, f"{run} was started again in {folder}"
        if event["event"] == "result":
            assert run not in results, f"{run} has two results in {folder}"
            results[run] = event["state"], event["score"]
    return results


def events_of_runs(folder: Path) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Yield the events of a sweep that belong to a run, with its settings and seed."""
    events = records(folder / "events.jsonl")
    settings: dict[int, str] = {}
    if events:
        space = yaml.safe_load((folder / "space.lock.yaml").read_text())
        defaults = (space.get("program") or {}).get("defaults", {})
    for event in events:
        if event["event"] == "configuration":
            settings[event["configuration"]] = _key({**defaults, **event["resolved"]})
        elif "seed" in event:
            yield (settings[event["configuration"]], event["seed"]), event


def _key(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def is_complete(folder: Path) -> bool:
    """Whether no trial of a sweep is open."""
    from sweep.record.sweep_record import open_sweep

    if not (folder / "space.lock.yaml").exists():
        return False
    sweep = open_sweep(folder.parent, folder.name)
    trials = sweep.trials()
    return len(trials) == sweep.planned and all(trial.ended for trial in trials)


def next_of_sweep(folder: Path) -> list[str] | None:
    sweep = folder / "runs" / NAME
    if is_complete(sweep):
        return None
    if (sweep / "space.lock.yaml").exists():
        return ["resume", NAME, "--cpus", "2"]
    return ["run", "space.yaml", "--offline", "--cpus", "2"]


def decision_of(folder: Path) -> Any:
    """The decision of a confirmation, or None if it is open."""
    from sweep.record.recorded_rounds import recorded_rounds
    from sweep.record.sweep_record import open_sweep

    if not records(folder / "events.jsonl"):
        return None
    rounds = recorded_rounds(open_sweep(folder.parent, folder.name))
    return None if rounds is None or rounds.outcome == "open" else rounds


def next_of_confirmation(folder: Path) -> list[str] | None:
    search = next_of_sweep(folder)
    if search is not None:
        return search
    if decision_of(folder / "runs" / f"{NAME}-confirm") is not None:
        return None
    return ["confirm", NAME, "--rounds", "--finalists", "1", "--seeds", "8", "--cpus", "2"]


def next_of_campaign(folder: Path) -> list[str] | None:
    from sweep.gate.campaign import Campaign

    path = folder / "camp"
    if not (path / "campaign.yaml").exists():
        words = ["--space", "space.yaml", "--worthwhile", "0.02", "--first-seeds", "5"]
        words += ["--secret", "kills"]  # the same seeds in every job
        return ["gate", "start", "camp", *words, "--most-seeds", "12"]
    campaign = Campaign.read(path)
    undecided = campaign.open is not None or campaign.open_recheck is not None
    if undecided or campaign.verdict().outcome == "more":
        return ["gate", "run", "camp"]
    proposals = (KEPT, DISCARDED)
    if len(campaign.proposals) < len(proposals):
        rate = proposals[len(campaign.proposals)]
        return ["gate", "propose", "camp", f"lr={rate}", "--run"]
    if campaign.unconfirmed:
        return ["gate", "recheck", "camp", "--run"]
    return None


def next_of_swarm(
    folder: Path, *, start: Sequence[str], proposals: Sequence[str]
) -> list[str] | None:
    """Return the next command of a campaign whose proposals are open together."""
    from sweep.gate.campaign import Campaign

    path = folder / "camp"
    if not (path / "campaign.yaml").exists():
        words = ["gate", "start", "camp", "--space", "space.yaml", "--secret", "kills"]
        return [*words, "--new-budget", *start]
    campaign = Campaign.read(path)
    run = ["gate", "run", "camp", "--parallel", "2"]
    made = len(campaign.proposals)
    if not made and campaign.verdict().outcome == "more":
        return run
    if made < len(proposals):
        return ["gate", "propose", "camp", proposals[made]]
    is_measured = campaign.verdict().outcome != "more"
    return None if is_measured and not campaign.open_proposals else run


def campaign_of(folder: Path) -> Any:
    """The events of a campaign, the results of a batch in the order of their seeds.

    Raises:
        AssertionError: a run was recorded twice.
    """
    events = []
    seen: set[tuple[str, int | None, int]] = set()
    for event in records(folder / "camp" / "events.jsonl"):
        for part in event.get("parts", ()):
            for seed, _, _ in part["results"]:
                key = part["arm"], part["number"], seed
                assert key not in seen, f"{key} was recorded twice"
                seen.add(key)
        kept = {name: value for name, value in event.items() if name not in ("time", "crc32")}
        if "parts" in kept:
            parts = kept["parts"]
            kept["parts"] = [
                {**part, "results": sorted(map(str, part["results"]))} for part in parts
            ]
        events.append(kept)
    for sweep in sorted((folder / "camp" / "runs").iterdir()):
        if (sweep / "events.jsonl").exists():
            trials_of(sweep)
    return json.loads(json.dumps(events).replace(str(folder), "FOLDER"))


JOBS = (
    Job("sweep", next_of_sweep, lambda folder: trials_of(folder / "runs" / NAME)),
    Job(
        "confirmation",
        next_of_confirmation,
        lambda folder: (
            trials_of(folder / "runs" / f"{NAME}-confirm"),
            str(decision_of(folder / "runs" / f"{NAME}-confirm")),
        ),
    ),
    Job("campaign", next_of_campaign, campaign_of, ("command", "sweep", "all")),
    Job(
        "swarm",
        partial(
            next_of_swarm,
            start=["--worthwhile", "0.02", "--first-seeds", "5", "--most-seeds", "12"],
            proposals=SWARM,
        ),
        campaign_of,
        ("command", "sweep", "all"),
    ),
    Job(
        "tiny-swarm",
        partial(
            next_of_swarm, start=["--worthwhile", "0.2", "--first-seeds", "3"], proposals=TINY_SWARM
        ),
        campaign_of,
        ("command", "sweep", "all"),
        space=TINY,
        needs_ray=True,
    ),
)


def trained_twice(folder: Path) -> list[str]:
    """Return the trainings that were started after their result had been recorded."""
    recorded: dict[Run, float] = {}
    for path in folder.rglob("space.lock.yaml"):
        for run, event in events_of_runs(path.parent):
            if event["event"] == "result":
                recorded[run] = event["time"]
    starts = [line for line in records(folder / "log.jsonl") if line["event"] == "start"]
    late = []
    for line in starts:
        run = _key({"lr": line["lr"]}), line["seed"]
        if line["time"] > recorded.get(run, float("inf")):
            late.append(str(run))
    return late


def sizes(folder: Path) -> int:
    """Return the bytes of all event logs, which grow with each event."""
    total = 0
    for pattern in ("runs/*/events.jsonl", "camp/events.jsonl", "camp/runs/*/events.jsonl"):
        for path in folder.glob(pattern):
            with contextlib.suppress(OSError):
                total += path.stat().st_size
    return total


def do(
    job: Job,
    folder: Path,
    with_ray: bool,
    chance: random.Random | None,
    usual_s: float,
    kills: Kills,
    most: int,
) -> Any:
    """Do a job in an empty folder, with kills if there is ``chance``; return its result.

    Raises:
        AssertionError: a command fails again and again, or with a traceback, or a training was
            started after its result was recorded.
    """
    write_space(folder, job.space)
    failures = 0
    while (words := job.next_command(folder)) is not None:
        command = start(words, folder, with_ray)
        kills.commands += 1
        killed = ""
        if chance is not None and kills.kills.total() < most:
            killed = kill_at_random(job, command, folder, chance, usual_s)
        deadline = time.monotonic() + LIMIT_S
        while not command.ended():
            assert time.monotonic() < deadline, f"{words} does not end"
            time.sleep(0.01)
        text = command.output.read_text()
        assert "Traceback" not in text, f"{words}:\n{text}"
        if killed:
            kills.kills[killed] += 1
        failures = failures + 1 if not killed and command.code not in (0, 1) else 0
        assert failures < MOST_FAILURES, f"{words} ends with {command.code}:\n{text}"
        if failures:
            time.sleep(0.5)
    late = trained_twice(folder)
    assert not late, f"started after their result was recorded: {late}"
    log = collections.Counter(line["event"] for line in records(folder / "log.jsonl"))
    kills.trainings += log["start"]
    kills.cut += log["start"] - log["end"]
    return job.result(folder)


def kill_at_random(
    job: Job, command: Command, folder: Path, chance: random.Random, usual_s: float
) -> str:
    """Kill a command; return whom, or "" if it ended before."""
    whom = chance.choice(job.whom)
    deadline = time.monotonic() + usual_s * (chance.random() if chance.random() < 0.5 else 2)
    delay = chance.uniform(0.0, 0.02)
    events = chance.randrange(4)  # that are let pass
    size = sizes(folder)
    while time.monotonic() < deadline:
        if command.ended():
            return ""
        now = sizes(folder)
        if now != size:
            size = now
            if not events:
                time.sleep(delay)
                break
            events -= 1
        time.sleep(0.001)
    if command.ended():
        return ""
    command.kill(whom)
    return whom


def main() -> None:
    """Kill the jobs of each kind, and print what was done to them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200, help="of all jobs together")
    quick = [job.name for job in JOBS if not job.needs_ray]
    parser.add_argument("--jobs", nargs="*", default=quick, choices=[job.name for job in JOBS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ray", action="store_true", help="with Ray and trainings as processes")
    arguments = parser.parse_args()
    chosen = [job for job in JOBS if job.name in arguments.jobs]
    with_ray = arguments.ray or any(job.needs_ray for job in chosen)
    if not with_ray:
        without_ray()
    for number, job in enumerate(chosen):
        most = (arguments.kills + number) // len(chosen)
        kill_job(job, most, arguments.seed, with_ray)


def kill_job(job: Job, most: int, seed: int, with_ray: bool) -> None:
    """Do a job until its commands have been killed ``most`` times; print the numbers after each.

    Raises:
        AssertionError: something was lost, counted twice or trained twice.
    """
    chance = random.Random(f"{seed} {job.name}")
    kills = Kills()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="loptune-kills-") as name:
        root = Path(name)
        (root / "undisturbed").mkdir()
        quiet = Kills()
        expected = do(job, root / "undisturbed", with_ray, None, 0.0, quiet, 0)
        usual_s = (time.monotonic() - began) / quiet.commands
        while kills.kills.total() < most:
            kills.jobs += 1
            folder = root / str(kills.jobs)
            folder.mkdir()
            result = do(job, folder, with_ray, chance, usual_s, kills, most)
            assert result == expected, f"seed {seed}, {job.name}:\n{result}\n{expected}"
            shutil.rmtree(folder)
            of_whom = ", ".join(f"{whom} {number}" for whom, number in sorted(kills.kills.items()))
            print(
                f"{job.name}: {kills.kills.total()} kills ({of_whom}) in {kills.jobs} jobs: "
                f"{kills.trainings} trainings started, {kills.cut} of them cut; results as "
                f"undisturbed; {time.monotonic() - began:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
