"""The parts of `trainer doctor --run`: the first hour on a machine with GPUs, each part limited in
time.

Every part runs in processes of its own, so all of them run even if one fails. The folder keeps each
part's log, and ``report.json`` with versions, seconds and the last lines of every part, which hold
its figures or its error. Without a GPU the parts run at reduced size on the CPU, if they can.
Nothing is downloaded: models have random weights, and prompts are generated.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from trainer.doctor.checks import RANDOM_MODELS, RANKS
from trainer.doctor.machine import Finding, versions
from trainer.shell.table import print_table

LAST_LINES = 40  # lines of each part's log in the report
HEARTBEAT_S = 15.0
GRACE_S = 45.0  # longer than torchrun waits for its ranks
_ROOT = Path(__file__).resolve().parents[2]  # of the checkout, or of the installed packages
_NO_CHECKOUT = "needs a checkout of the repository: its tests are not installed"


@dataclass(frozen=True)
class Machine:
    """What decides which parts can run."""

    gpus: int
    vllm: bool
    ray: bool
    checkout: bool = True  # whether tests/ and benchmarks/ are there


@dataclass(frozen=True)
class Part:
    """One part of the check.

    Attributes:
        name: of the part, of its log and for ``--run``.
        question: the question that it answers.
        limit_s: seconds after which it is ended.
        command: of the part; None if this machine cannot run it.
        missing: the reason why it cannot.
    """

    name: str
    question: str
    limit_s: float
    command: tuple[str, ...] | None
    missing: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a part ended: state is passed, failed, timed out or not run; ``detail`` its last line or
    the reason.
    """

    name: str
    state: str
    seconds: float
    detail: str
    last_lines: tuple[str, ...] = ()


def this_machine(gpus: int) -> Machine:
    """Return what this machine has. ``gpus`` is the number that torch can use."""
    return Machine(
        gpus=gpus,
        vllm=importlib.util.find_spec("vllm") is not None,
        ray=importlib.util.find_spec("ray") is not None,
        checkout=(_ROOT / "tests" / "gpu").is_dir() and (_ROOT / "benchmarks").is_dir(),
    )


def parts(machine: Machine, folder: Path) -> list[Part]:
    """Return all parts, those first whose failure explains the most others."""
    return [
        Part(
            name="driver",
            question="does torch see the device, how fast does it multiply",
            limit_s=120.0,
            command=_check("driver"),
        ),
        Part(
            name="compiler",
            question="can Triton and vLLM compile kernels",
            limit_s=180.0,
            command=_check("compiler"),
        ),
        _tests(
            machine,
            name="algorithm",
            question="published numbers of every rule, log-probabilities and gradients",
            limit_s=600.0,
            file="tests/gpu/test_algorithm.py",
            on_cpu="not gpu",
        ),
        _tests(
            machine,
            name="model",
            question="forward, backward, memory, attention kernel, sampling",
            limit_s=900.0,
            file="tests/gpu/test_model.py",
            on_cpu="not gpu and not slow",
        ),
        _vllm(machine),
        _rehearsal(machine),
        _tests(
            machine,
            name="strategies",
            question="DDP and ZeRO 0 to 3 train, save and resume",
            limit_s=1200.0,
            file="tests/gpu/test_training.py",
            on_cpu="not gpu",
        ),
        *_steps(machine, folder),
        _two_trials(machine, folder),
        _phases(machine),
    ]


def _python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, *arguments)


def _check(name: str, *arguments: str) -> tuple[str, ...]:
    return _python("-m", "trainer.doctor.checks", name, *arguments)


def _tests(
    machine: Machine, *, name: str, question: str, limit_s: float, file: str, on_cpu: str
) -> Part:
    """Return a part that runs tests; ``on_cpu`` selects them on a machine without GPUs."""
    if not machine.checkout:
        return Part(name, question, limit_s=limit_s, command=None, missing=_NO_CHECKOUT)
    marker = "gpu" if machine.gpus else on_cpu
    options = ("-o", "addopts=-rs -s -p no:cacheprovider", "-m", marker)
    command = _python("-m", "pytest", *options, str(_ROOT / file))
    return Part(name, question, limit_s=limit_s, command=command)


def _vllm(machine: Machine) -> Part:
    tests = _tests(
        machine,
        name="vllm",
        question="vLLM samples from the policy, after weights arrived, sleep and a restart",
        limit_s=900.0,
        file="tests/gpu/test_vllm.py",
        on_cpu="vllm",
    )
    if machine.vllm:
        return tests
    missing = "vLLM is not installed: make install-gpu"
    return Part(tests.name, tests.question, tests.limit_s, command=None, missing=missing)


def _rehearsal(machine: Machine) -> Part:
    device = ("--device", "cuda") if machine.gpus else ("--device", "cpu")
    ranks = str(min(machine.gpus, 4) or 2)
    return Part(
        name="rehearsal",
        question=f"kk_3b at reduced size on {ranks} ranks: engine, strategy, checkpoint, resume",
        limit_s=900.0,
        command=_python("-m", "trainer", "rehearse", "kk_3b", *device, "--ranks", ranks),
    )


def _steps(machine: Machine, folder: Path) -> list[Part]:
    if not machine.gpus:
        return [
            Part(
                name="step of tiny_kk",
                question="one step on a CPU",
                limit_s=300.0,
                command=_check("step", "--folder", str(folder)),
            )
        ]
    return [_step(machine, preset, folder) for preset in RANDOM_MODELS]


def _step(machine: Machine, preset: str, folder: Path) -> Part:
    ranks = RANKS.get(preset, 1)
    name = f"step of {preset}"
    question = f"one step of {preset} on {ranks} GPUs: seconds, memory predicted and measured"
    if machine.gpus < ranks:
        return Part(name, question, limit_s=0.0, command=None, missing=f"needs {ranks} GPUs")
    command = _check("step", "--preset", preset, "--folder", str(folder))
    return Part(name, question, limit_s=900.0, command=command)


def _two_trials(machine: Machine, folder: Path) -> Part:
    return Part(
        name="two trials",
        question="two trials of a sweep, one after the other in one process",
        limit_s=600.0,
        command=_check("two-trials", "--folder", str(folder)) if machine.ray else None,
        missing="" if machine.ray else "Ray is not installed",
    )


def _phases(machine: Machine) -> Part:
    question = "seconds of a step by phase and rule, compared with TRL's"
    if not machine.checkout:
        return Part("phases", question, limit_s=1800.0, command=None, missing=_NO_CHECKOUT)
    size = ["--model", "tiny", "--steps", "1", "--prompts", "2", "--tokens", "16"]
    if machine.gpus:
        size = ["--model", "0.5B", "--steps", "2"]
    command = _python("-m", "benchmarks.gpu_step", *size)
    return Part("phases", question, limit_s=1800.0, command=command)


def run(part: Part, folder: Path) -> Outcome:
    """Run a part in a process group of its own, which is ended at its limit. The folder must exist;
    the part's log is written there.
    """
    if part.command is None:
        return Outcome(part.name, "not run", 0.0, part.missing)
    log = folder / f"{part.name.replace(' ', '-').replace(':', '-')}.log"
    # FlashInfer calls ninja, which pip puts beside Python.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # In the report's folder, where no file of the user's shadows a module, and so with our path.
    python_path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    started = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            part.command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"PATH": path, "PYTHONPATH": python_path},
            cwd=folder,
        )
        try:
            in_time = _wait(process, part, started)
        finally:
            _end(process)
    seconds = time.monotonic() - started
    lines = tuple(line for line in log.read_text(errors="replace").splitlines() if line.strip())
    detail = lines[-1].strip(" =") if lines else ""  # pytest rules its last line off by signs
    state = "timed out"
    if in_time:
        state = "failed" if process.returncode else "passed"
    return Outcome(part.name, state, seconds, detail, lines[-LAST_LINES:])


def _wait(process: "subprocess.Popen[bytes]", part: Part, started: float) -> bool:
    """Wait for the process, printing that it still runs; return False when its time is up."""
    while (left := started + part.limit_s - time.monotonic()) > 0:
        try:
            process.wait(timeout=min(HEARTBEAT_S, left))
            return True
        except subprocess.TimeoutExpired:
            print(
                f"  {part.name}: {time.monotonic() - started:.0f} of at most {part.limit_s:.0f} s",
                flush=True,
            )
    return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the part and all processes that it started, so that none keeps a GPU from the next part.

    Ranks of torchrun have process groups of their own, and torchrun gives them 30 s to save.
    """
    everyone = []
    with suppress(psutil.NoSuchProcess):
        everyone = psutil.Process(process.pid).children(recursive=True)
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, ending)
        deadline = time.monotonic() + GRACE_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
    process.wait()
    for descendant in everyone:
        with suppress(psutil.NoSuchProcess):
            descendant.kill()
    psutil.wait_procs(everyone, timeout=GRACE_S)


def run_parts(chosen: Sequence[Part], findings: Sequence[Finding], folder: Path) -> list[Outcome]:
    """Run the parts one after the other, print a table, and rewrite ``report.json`` after each."""
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for number, part in enumerate(chosen, 1):
        print(f"{number}/{len(chosen)} {part.name}: {part.question}", flush=True)
        outcome = run(part, folder)
        outcomes.append(outcome)
        print(
            f"  {outcome.state} after {outcome.seconds:.0f} s: {outcome.detail[:150]}", flush=True
        )
        report = {
            "versions": versions(),
            "machine": [asdict(finding) for finding in findings],
            "parts": [asdict(each) for each in outcomes],
        }
        (folder / "report.json").write_text(json.dumps(report, indent=1))
    rows = [[each.name, each.state, f"{each.seconds:.0f}", each.detail[:80]] for each in outcomes]
    print_table(["part", "result", "seconds", "last line"], rows)
    print(f"{folder / 'report.json'} holds versions, figures and errors; the logs are beside it")
    return outcomes
