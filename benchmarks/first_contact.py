"""The first hour on a machine with GPUs, in order, each part bounded in time: `make first-contact`.

    python -m benchmarks.first_contact                     # into ./first-contact
    python -m benchmarks.first_contact --only driver vllm  # some parts
    python -m benchmarks.first_contact --list              # what would run here, and what not

Every part runs in processes of its own, so that all of them run though one fails. A table at the
end says what passed. The folder keeps each part's log, and `report.json` with versions, seconds and
the last lines of every part, which hold its figures or its error: send that file back. Without a
GPU the parts run small on the CPU, where they can.

Nothing is downloaded: models have random weights, and prompts are generated.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from research.tables import print_rows

LIBRARIES = (
    "torch",
    "transformers",
    "accelerate",
    "deepspeed",
    "vllm",
    "triton",
    "ray",
    "optuna",
    "mlflow",
    "numpy",
    "trl",
    "peft",
)
LAST_LINES = 40  # of each part's log that the report keeps
HEARTBEAT_S = 15.0
GRACE_S = 10.0
STEP_PROMPTS = 16  # of a preset's step: its own microbatches, in minutes
RANDOM_MODELS = {"kk_0.5b": "0.5B", "kk_3b_lora:ar_lopti": "3B", "kk_3b:ar_lopti": "3B"}
RANKS = {"kk_3b:ar_lopti": 4}


@dataclass(frozen=True)
class Machine:
    """What decides which parts run."""

    gpus: int
    vllm: bool
    ray: bool


@dataclass(frozen=True)
class Part:
    """One part of the first contact.

    Attributes:
        name: of the part, of its log and for ``--only``.
        question: that it answers.
        limit_s: seconds after which it is ended.
        command: of the part, None where this machine cannot run it.
        missing: why it cannot.
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


def this_machine() -> Machine:
    """Return what this machine has, by torch and the installed packages."""
    import torch

    return Machine(
        gpus=torch.cuda.device_count() if torch.cuda.is_available() else 0,
        vllm=importlib.util.find_spec("vllm") is not None,
        ray=importlib.util.find_spec("ray") is not None,
    )


def _python(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, *arguments)


def _own(part: str, *arguments: str) -> tuple[str, ...]:
    return _python("-m", "benchmarks.first_contact", "--part", part, *arguments)


def _tests(machine: Machine, file: str, cpu: str) -> tuple[str, ...]:
    marker = "gpu" if machine.gpus else cpu
    return _python("-m", "pytest", "-o", "addopts=-rs -s -p no:cacheprovider", "-m", marker, file)


def _preset(machine: Machine, preset: str, folder: Path) -> Part:
    ranks = RANKS.get(preset, 1)
    name = f"step of {preset}"
    question = f"one step of {preset} on {ranks} GPUs: seconds, memory predicted and measured"
    if machine.gpus < ranks:
        return Part(name, question, 0.0, None, f"needs {ranks} GPUs")
    return Part(name, question, 900.0, _own("preset", "--preset", preset, "--folder", str(folder)))


def parts(machine: Machine, folder: Path) -> list[Part]:
    """Return all parts, in the order in which a failure tells most."""
    no_vllm = "" if machine.vllm else "vLLM is not installed: make install-gpu"
    vllm = None if no_vllm else _tests(machine, "tests/gpu/test_vllm.py", "vllm")
    no_ray = "" if machine.ray else "Ray is not installed"
    sweep = None if no_ray else _own("two-trials", "--folder", str(folder))
    size = (
        ("--model", "0.5B")
        if machine.gpus
        else ("--model", "tiny", "--prompts", "2", "--tokens", "16")
    )
    steps = [_preset(machine, preset, folder) for preset in RANDOM_MODELS]
    if not machine.gpus:
        steps = [
            Part(
                "step of tiny_kk",
                "one step on a CPU",
                300.0,
                _own("preset", "--folder", str(folder)),
            )
        ]
    return [
        Part(
            "driver", "does torch see the device, how fast does it multiply", 120.0, _own("driver")
        ),
        Part("compiler", "can Triton and vLLM compile kernels", 180.0, _own("compiler")),
        Part(
            "algorithm",
            "published numbers of every rule, log-probabilities and gradients",
            600.0,
            _tests(machine, "tests/gpu/test_algorithm.py", "not gpu"),
        ),
        Part(
            "model",
            "forward, backward, memory, attention kernel, sampling",
            900.0,
            _tests(machine, "tests/gpu/test_model.py", "not gpu and not slow"),
        ),
        Part(
            "vllm",
            "vLLM samples what the policy is, after weights arrived, slept and started anew",
            900.0,
            vllm,
            no_vllm,
        ),
        Part(
            "strategies",
            "DDP and ZeRO 0 to 3 train, save and resume",
            1200.0,
            _tests(machine, "tests/gpu/test_training.py", "not gpu"),
        ),
        *steps,
        Part(
            "two trials",
            "two trials of a sweep, one after the other in one process",
            600.0,
            sweep,
            no_ray,
        ),
        Part(
            "phases",
            "seconds of a step by phase and rule, beside TRL's",
            1800.0,
            _python("-m", "benchmarks.gpu_step", "--steps", "2" if machine.gpus else "1", *size),
        ),
    ]


def run(part: Part, folder: Path) -> Outcome:
    """Run a part in a process group of its own, which is ended at its limit; the log is in the
    folder.
    """
    if part.command is None:
        return Outcome(part.name, "not run", 0.0, part.missing)
    log = folder / f"{part.name.replace(' ', '-').replace(':', '-')}.log"
    # FlashInfer calls ninja, which pip puts beside Python.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    started = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            part.command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"PATH": path},
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
    """Wait for the process and say now and then that it runs; False where its time is up."""
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
    """End the process group: what a part started must not keep the GPU from the next one."""
    for ending in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, ending)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + GRACE_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
    process.wait()


def versions() -> dict[str, str]:
    """Return the versions of Python, the system and the libraries that are installed."""
    installed = {"python": platform.python_version(), "system": platform.platform()}
    for library in LIBRARIES:
        if importlib.util.find_spec(library) is not None:
            installed[library] = importlib.metadata.version(library)
    return installed


def first_contact(chosen: Sequence[Part], folder: Path) -> list[Outcome]:
    """Run the parts one after the other and rewrite ``report.json`` after each."""
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for number, part in enumerate(chosen, 1):
        print(f"{number}/{len(chosen)} {part.name}: {part.question}", flush=True)
        outcome = run(part, folder)
        outcomes.append(outcome)
        print(
            f"  {outcome.state} after {outcome.seconds:.0f} s: {outcome.detail[:150]}", flush=True
        )
        report = {"versions": versions(), "parts": [asdict(each) for each in outcomes]}
        (folder / "report.json").write_text(json.dumps(report, indent=1))
    rows = [[each.name, each.state, f"{each.seconds:.0f}", each.detail[:80]] for each in outcomes]
    print_rows("First contact", ["part", "result", "seconds", "last line"], rows)
    print(f"send back {folder / 'report.json'}; the logs are beside it")
    return outcomes


def check_driver() -> None:
    """Say what torch sees and multiply matrices."""
    import torch

    from trainer.parallel.gpus import driver_version

    print(
        f"driver {driver_version()}, CUDA of torch {torch.version.cuda}, devices "
        f"{torch.cuda.device_count()}"
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = 4096 if device.type == "cuda" else 512
    left = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    assert torch.isfinite(left @ left).all()  # loads the kernels, and waits for the device
    started = time.perf_counter()
    for _ in range(10):
        product = left @ left
    assert torch.isfinite(product).all()  # waits for the device
    seconds = time.perf_counter() - started
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{name}: {10 * 2 * size**3 / seconds / 1e12:.3g} TFLOP/s in bfloat16")


def check_compiler() -> None:
    """Compile what vLLM's kernels need, and on a GPU one kernel by Triton."""
    import torch

    from trainer.parallel.gpus import check_compiler as compile_one_line

    compile_one_line()
    print("a C compiler and Python.h are there")
    if torch.cuda.is_available():
        doubled = torch.compile(lambda values: values * 2 + 1)(torch.arange(1000.0, device="cuda"))
        assert torch.equal(doubled.cpu(), torch.arange(1000.0) * 2 + 1)
        print("Triton compiled a kernel, and it is right")
        print(f"FlashInfer would find ninja {shutil.which('ninja')}, nvcc {shutil.which('nvcc')}")


def take_a_step(preset: str | None, folder: Path) -> None:
    """Train one step of a preset with random weights on generated prompts; on a CPU of the tiny
    preset as it is.
    """
    runs = folder / "runs"
    name = f"step-{time.time_ns()}"
    command = [*_python("-m", "trainer", "run"), preset or "tiny_kk", "max_steps=1", "--offline"]
    if preset is not None:
        command += _random_model(preset, folder)
        ranks = RANKS.get(preset, 1)
        launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
        command = [*_python(*launcher), *command[1:]] if ranks > 1 else command
    subprocess.run([*command, "--name", name, "--runs-dir", str(runs)], check=True)
    lines = (runs / name / "metrics.jsonl").read_text().splitlines()
    merged: dict[str, float] = {}
    for line in lines:
        merged |= json.loads(line)
    shown = [key for key in merged if key.startswith(("memory/", "time/"))]
    shown.sort(key=lambda key: key != "time/step")  # the whole, then its phases
    print(", ".join(f"{key} {merged[key]:.2f}" for key in shown))


def _random_model(preset: str, folder: Path) -> list[str]:
    """Return the overrides that put a random model and generated prompts into a preset."""
    from benchmarks.against_trl import make_prompts
    from benchmarks.gpu_step import WORDS, make_folder

    size = RANDOM_MODELS[preset]
    model = folder / f"random-{size}"
    if not (model / "config.json").exists():
        model.mkdir(parents=True, exist_ok=True)
        make_folder(model, size)
    data = model / "prompts.jsonl"
    prompts = make_prompts(4 * STEP_PROMPTS, 256, WORDS)
    data.write_text("\n".join(json.dumps({"prompt": text, "answer": "-"}) for text in prompts))
    return [
        f"model.name_or_path={model}",
        "data.task=custom",
        f"data.train={data}",
        "data.prompt_format=raw",
        "reward.functions={'benchmarks.against_trl:reward_tokens': 1.0}",
        f"rollout.prompts_per_step={STEP_PROMPTS}",
        f"optim.update_batch_size={STEP_PROMPTS * 4}",
        f"evaluation.sets={{dev: {{source: {data}, limit: 4}}}}",
    ]


def run_two_trials(folder: Path) -> None:
    """Run a sweep of two trials that follow one another in one warm process."""
    import torch

    gpus = min(1, torch.cuda.device_count())
    overrides = [
        "trainer.max_steps=2",
        "trainer.evaluation.every_steps=1",
        "objective.window=1",
        "search.configurations=0",
        "seeds=[0]",
        "limits.max_concurrent=1",
        f"resources.gpus_per_trial={gpus}",
        "baselines=[{algorithm.ar_alpha: 0.0, lopti: false}, {algorithm.ar_alpha: 0.3, lopti: "
        "false}]",
    ]
    name = f"two-trials-{time.time_ns()}"
    place = ["--offline", "--name", name, "--runs-dir", str(folder / "runs")]
    started = time.monotonic()
    subprocess.run([*_python("-m", "sweep", "run", "quickstart"), *place, *overrides], check=True)
    print(f"both trials are complete after {time.monotonic() - started:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("first-contact"))
    parser.add_argument("--only", nargs="+", metavar="PART", help="names of parts")
    parser.add_argument("--list", action="store_true", help="what would run here, and what not")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--preset", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    actions: dict[str, Callable[[], None]] = {
        "driver": check_driver,
        "compiler": check_compiler,
        "preset": lambda: take_a_step(arguments.preset, arguments.folder),
        "two-trials": lambda: run_two_trials(arguments.folder),
    }
    if arguments.part:
        actions[arguments.part]()
        return 0
    offered = parts(this_machine(), arguments.folder.absolute())
    names = [part.name for part in offered]
    unknown = sorted(set(arguments.only or ()) - set(names))
    if unknown:
        parser.error(f"no part {unknown[0]!r}; there are {', '.join(names)}")
    chosen = [part for part in offered if not arguments.only or part.name in arguments.only]
    if arguments.list:
        for part in chosen:
            print(
                f"{part.name:24} {part.missing or f'at most {part.limit_s / 60:.0f} min'}: "
                f"{part.question}"
            )
        return 0
    outcomes = first_contact(chosen, arguments.folder.absolute())
    return int(any(outcome.state in ("failed", "timed out") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
