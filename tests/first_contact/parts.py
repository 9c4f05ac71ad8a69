"""The parts of `make first-contact`, and which of them this machine can run."""

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.first_contact.checks import RANDOM_MODELS, RANKS
from tests.paths import ROOT
from trainer.parallel.gpus import GPU_FRACTION_VARIABLE

# time limit of each part, so that a machine rented for minutes still gives some results
LIMIT_S = 540.0
_NO_VLLM = "vLLM is not installed: make install-gpu"
_NO_RAY = "Ray is not installed"


@dataclass(frozen=True)
class Machine:
    """The facts that decide which parts can run."""

    gpus: int
    vllm: bool
    ray: bool


@dataclass(frozen=True)
class Part:
    """One part of the check.

    Attributes:
        name: name of the part and of its log.
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


def this_machine(gpus: int) -> Machine:
    """Return what this machine has. ``gpus`` is the number that torch can use."""
    return Machine(
        gpus=gpus,
        vllm=importlib.util.find_spec("vllm") is not None,
        ray=importlib.util.find_spec("ray") is not None,
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
    return _python("-m", "tests.first_contact.checks", name, *arguments)


def _tests(
    machine: Machine, *, name: str, question: str, limit_s: float, file: str, on_cpu: str
) -> Part:
    """Return a part that runs tests; ``on_cpu`` selects them on a machine without GPUs."""
    marker = "gpu" if machine.gpus else on_cpu
    options = ("-o", "addopts=-rs -s -p no:cacheprovider", "-m", marker)
    command = _python("-m", "pytest", *options, str(ROOT / file))
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
    size = ["--model", "tiny", "--steps", "1", "--prompts", "2", "--tokens", "16"]
    sides = ["plain", "Lopti", "plain, activations kept"]
    if machine.gpus:
        size = ["--model", "1.5B", "--steps", "2", "--prompts", "16"]
        sides.append("plain, compiled layers")
        question += ", compiled layers"
    command = _python("-m", "benchmarks.gpu_step", *size, "--sides", *sides)
    return Part("phases", question, limit_s=LIMIT_S, command=command)
