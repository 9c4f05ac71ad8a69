"""The parts of `trainer doctor --run`: the first hour on a machine with GPUs, each part limited in
time.

Every part runs in its own processes, so all of them run even if one fails. The folder keeps each
part's log, and ``report.json`` with versions, seconds and the last lines of every part, which
contain its figures or its error. Without a GPU the parts run at reduced size on the CPU, if they
can. Nothing is downloaded: models have random weights, and prompts are generated.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import psutil

from loptune.terminal.table import print_table
from trainer.doctor.checks import RANDOM_MODELS, RANKS
from trainer.doctor.machine import Finding, versions
from trainer.parallel.gpus import GPU_FRACTION_VARIABLE

LAST_LINES = 40  # lines of each part's log in the report
HEARTBEAT_S = 15.0
# time limit of each part, so that a machine rented for minutes still gives some results
LIMIT_S = 540.0
GRACE_S = 45.0  # longer than torchrun waits for its ranks
_PART_VARIABLE = "LOPTUNE_DOCTOR_PART"  # marks the processes of a part
_ROOT = Path(__file__).resolve().parents[2]  # folder of the checkout or of the installed packages
_NO_VLLM = "vLLM is not installed: make install-gpu"
_NO_RAY = "Ray is not installed"
_NO_CHECKOUT = "needs a checkout of the repository: its tests are not installed"


@dataclass(frozen=True)
class Machine:
    """The facts that decide which parts can run."""

    gpus: int
    vllm: bool
    ray: bool
    checkout: bool = True  # whether tests/ and benchmarks/ exist


@dataclass(frozen=True)
class Part:
    """One part of the check.

    Attributes:
        name: name of the part, used for its log and for ``--run``.
        question: the question that it answers.
        limit_s: seconds after which it is stopped.
        command: command line of the part; None if this machine cannot run it.
        missing: the reason why it cannot.
        environment: variables that it gets in addition to those of this process.
    """

    name: str
    question: str
    limit_s: float
    command: tuple[str, ...] | None
    missing: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PartResult:
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
    """Return all parts, the most informative first: parts that explain failures of others, parts
    that have never run or never been measured (without vLLM, then with it), then tests of parts
    that have run before.
    """
    return [
        Part(
            name="driver",
            question="GPU visible to torch; throughput of matrix products",
            limit_s=120.0,
            command=_check("driver"),
        ),
        Part(
            name="compiler",
            question="can Triton and vLLM compile kernels",
            limit_s=180.0,
            command=_check("compiler"),
        ),
        Part(
            name="memory probe",
            question="expandable segments, memory sharing between processes, NCCL's memory",
            limit_s=120.0,
            command=_check("memory-probe"),
        ),
        _tests(
            machine,
            name="gradient race",
            question="do reductions that overlap with ZeRO-2's backward pass lose gradients",
            limit_s=LIMIT_S,
            file="tests/gpu/test_gradient_race.py",
            on_cpu="not gpu",
        ),
        _phases(machine),
        *_two_ranks_on_one_device(machine, folder),
        _engine(machine, folder),
        _vllm(machine),
        *_steps(machine, folder),
        _rehearsal(machine, name="rehearsal on one rank", spec="kk_0.5b", ranks=1, limit_s=LIMIT_S),
        _two_trials(machine, folder),
        _shared_gpu(machine, folder),
        _tests(
            machine,
            name="algorithm",
            question="published numbers of every rule, log-probabilities and gradients",
            limit_s=LIMIT_S,
            file="tests/gpu/test_algorithm.py",
            on_cpu="not gpu",
        ),
        _tests(
            machine,
            name="model",
            question="forward, backward, memory, attention kernel, sampling",
            limit_s=LIMIT_S,
            file="tests/gpu/test_model.py",
            on_cpu="not gpu and not slow",
        ),
        _tests(
            machine,
            name="strategies",
            question="DDP and ZeRO 0 to 3 train, save and resume",
            limit_s=LIMIT_S,
            file="tests/gpu/test_training.py",
            on_cpu="not gpu",
        ),
        _on_all_gpus(machine),
    ]


def untold(machine: Machine) -> list[str]:
    """Return the questions that the parts leave open on this machine even if all of them pass."""
    questions = ["cost of a complete run: each part trains one to ten steps with random weights"]
    if machine.gpus == 0:
        return ["anything about GPUs: on a CPU the parts show only that they run", *questions]
    if machine.gpus < 2:
        questions += [
            "NCCL between ranks, tensor parallel, and weights sent to servers by NCCL: two GPUs",
            "the speed of several ranks: two ranks share this GPU by gloo, which shows only that "
            "they work",
        ]
    if machine.gpus < max(RANKS.values()):
        questions.append(f"a step of {', '.join(RANKS)}: {max(RANKS.values())} GPUs")
    questions.append("several nodes")
    return questions


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
        question="vLLM samples from the policy after a weight update, sleep and a restart",
        limit_s=LIMIT_S,
        file="tests/gpu/test_vllm.py",
        on_cpu="vllm",
    )
    if machine.vllm:
        return tests
    return replace(tests, command=None, missing=_NO_VLLM)


def _engine(machine: Machine, folder: Path) -> Part:
    part = Part(
        name="engine",
        question="milliseconds per decode step, with and without seeds and log-probabilities",
        limit_s=LIMIT_S,
        command=_check("engine", "--folder", str(folder)),
    )
    return part if machine.vllm else replace(part, command=None, missing=_NO_VLLM)


def _rehearsal(
    machine: Machine, *, name: str, spec: str, ranks: int, limit_s: float, overrides: str = ""
) -> Part:
    words = [spec, *filter(None, [overrides]), "--ranks", str(ranks)]
    words += ["--device", "cuda" if machine.gpus else "cpu"]
    strategy = f" ({overrides})" if overrides else ""
    on_ranks = "1 rank" if ranks == 1 else f"{ranks} ranks"
    return Part(
        name=name,
        question=f"{spec}{strategy} at reduced size on {on_ranks}: engine, checkpoint, resumption",
        limit_s=limit_s,
        command=_python("-m", "trainer", "rehearse", *words),
    )


def _two_ranks_on_one_device(machine: Machine, folder: Path) -> list[Part]:
    """Return the parts that run two ranks on the first GPU, which only gloo can connect."""
    environment = {}
    if machine.gpus:
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        environment = {
            "CUDA_VISIBLE_DEVICES": first,
            "LOPTUNE_GLOO_ON_GPUS": "1",
            GPU_FRACTION_VARIABLE: "0.5",
        }
    rehearsals = [
        _rehearsal(
            machine,
            name=f"two ranks by {strategy}",
            spec="kk_3b",
            ranks=2,
            limit_s=LIMIT_S,
            overrides=f"parallel.strategy={strategy}",
        )
        for strategy in ("ddp", "deepspeed")
    ]
    lost_rank = Part(
        name="lost rank",
        question="one of two ranks is killed: the whole run ends and can be resumed",
        limit_s=LIMIT_S,
        command=_check("lost-rank", "--folder", str(folder)),
    )
    return [replace(part, environment=environment) for part in (*rehearsals, lost_rank)]


def _on_all_gpus(machine: Machine) -> Part:
    ranks = max(2, min(machine.gpus, 4))
    part = _rehearsal(machine, name="ranks by NCCL", spec="kk_3b", ranks=ranks, limit_s=LIMIT_S)
    if machine.gpus < ranks:
        return replace(part, command=None, missing="needs 2 GPUs")
    return part


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
    return Part(name, question, limit_s=LIMIT_S, command=command)


def _two_trials(machine: Machine, folder: Path) -> Part:
    part = Part(
        name="two trials",
        question="two trials of a sweep, sequentially in one process",
        limit_s=LIMIT_S,
        command=_check("two-trials", "--folder", str(folder)),
    )
    return part if machine.ray else replace(part, command=None, missing=_NO_RAY)


def _shared_gpu(machine: Machine, folder: Path) -> Part:
    part = Part(
        name="two trials on one GPU",
        question="two trials of ten steps at the same time, each with half of a GPU",
        limit_s=LIMIT_S,
        command=_check("shared-gpu", "--folder", str(folder)),
    )
    if not machine.gpus:
        return replace(part, command=None, missing="needs a GPU")
    return part if machine.ray else replace(part, command=None, missing=_NO_RAY)


def _phases(machine: Machine) -> Part:
    question = "seconds of the second and third step by phase: plain, Lopti, without checkpointing"
    if not machine.checkout:
        return Part("phases", question, limit_s=LIMIT_S, command=None, missing=_NO_CHECKOUT)
    size = ["--model", "tiny", "--steps", "1", "--prompts", "2", "--tokens", "16"]
    sides = ["plain", "Lopti", "plain, activations kept"]
    if machine.gpus:
        size = ["--model", "1.5B", "--steps", "2", "--prompts", "16"]
        sides.append("plain, compiled layers")
        question += ", compiled layers"
    command = _python("-m", "benchmarks.gpu_step", *size, "--sides", *sides)
    return Part("phases", question, limit_s=LIMIT_S, command=command)


def run(part: Part, folder: Path) -> PartResult:
    """Run a part in its own process group, which is stopped at its time limit. The folder must
    exist; the part's log is written there.
    """
    if part.command is None:
        return PartResult(part.name, "not run", 0.0, part.missing)
    log = folder / f"{part.name.replace(' ', '-').replace(':', '-')}.log"
    # FlashInfer calls ninja, which pip puts next to Python.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Run in the report's folder, where no user's file shadows a module, so pass our path.
    python_path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    part_id = uuid.uuid4().hex
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            part.command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={
                **os.environ,
                "PATH": path,
                "PYTHONPATH": python_path,
                **part.environment,
                _PART_VARIABLE: part_id,
            },
            cwd=folder,
        )
        try:
            in_time = _wait(process, part, started)
        finally:
            _end(process, part_id)
    seconds = time.monotonic() - started
    lines = tuple(
        line
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    )
    detail = lines[-1].strip(" =") if lines else ""  # pytest surrounds its last line with signs
    state = "timed out"
    if in_time:
        state = "failed" if process.returncode else "passed"
    return PartResult(part.name, state, seconds, detail, lines[-LAST_LINES:])


def _wait(process: "subprocess.Popen[bytes]", part: Part, started: float) -> bool:
    """Wait for the process and print that it is still running; return False when its time is up."""
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


def _end(process: "subprocess.Popen[bytes]", part_id: str) -> None:
    """Stop the part and all processes that it started, so that none keeps a GPU from the next part.
    Ranks of torchrun have their own process groups, and torchrun gives them 30 s to save.
    """
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, ending)
        deadline = time.monotonic() + GRACE_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
    process.wait()
    left = _processes_of(part_id)
    for descendant in left:
        with suppress(psutil.NoSuchProcess):
            descendant.kill()
    psutil.wait_procs(left, timeout=GRACE_S)


def _processes_of(part_id: str) -> list[psutil.Process]:
    """Return the running processes that a part has started, including orphans such as Ray's
    daemons.
    """
    found = []
    for candidate in psutil.process_iter():
        with suppress(psutil.Error):
            if candidate.environ().get(_PART_VARIABLE) == part_id:
                found.append(candidate)
    return found


def run_parts(
    chosen: Sequence[Part],
    findings: Sequence[Finding],
    folder: Path,
    cannot_tell: Sequence[str] = (),
) -> list[PartResult]:
    """Run the parts sequentially, print a table, and rewrite ``report.json`` after each.
    ``cannot_tell`` are the questions that the parts leave open.
    """
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
            "cannot_tell": list(cannot_tell),
        }
        (folder / "report.json").write_text(json.dumps(report, indent=1))
    rows = [[each.name, each.state, f"{each.seconds:.0f}", each.detail[:80]] for each in outcomes]
    print_table(["part", "result", "seconds", "last line"], rows)
    for question in cannot_tell:
        print(f"not tested by these parts: {question}")
    print(
        f"{folder / 'report.json'} holds versions, figures and errors; the logs are in the same "
        "folder"
    )
    return outcomes
