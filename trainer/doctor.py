"""Check this machine for training, within seconds and without changing anything."""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from loptune.errors import MissingError, listed
from loptune.terminal.table import counted
from trainer.parallel.gpus import check_compiler, driver_version, query_gpus, visible_gpus

State = Literal["ok", "missing", "problem", "unknown"]

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
TORCH_TIMEOUT_S = 60.0  # importing torch takes 2 to 20 s, longer from a slow disk
MIN_FREE_BYTES = 2 * 10**9  # disk space below which even a small run may fail to write a checkpoint
_GB = 10**9
# Importing torch and initializing CUDA can hang or crash with a broken driver, so another process
# runs this.
_TORCH = """
import json, torch
found = {"version": torch.__version__, "cuda": torch.version.cuda, "gpus": [], "reason": ""}
if torch.version.cuda is not None:
    try:
        torch.cuda.init()
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            found["gpus"].append([device.name, device.major, device.minor])
    except (RuntimeError, AssertionError) as error:
        found["reason"] = str(error).strip().splitlines()[0]
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Finding:
    """One row of `trainer doctor`.

    Attributes:
        item: the thing that was checked.
        state: ``ok``; ``missing`` if it is absent and only some runs need it; ``problem`` if it is
            present and does not work; ``unknown`` if it could not be determined.
        found: value, version or reason.
        advice: the fix, if any.
    """

    item: str
    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True)
class TorchReport:
    """Torch's view of this machine's GPUs. ``error`` is set if torch is missing or fails."""

    version: str = ""
    cuda: str | None = None
    gpus: tuple[str, ...] = ()  # name and compute capability
    reason: str = ""  # why CUDA could not be initialized
    error: str = ""


def examine(folder: Path, torch_report: TorchReport) -> list[Finding]:
    """Return the findings about this machine, for runs in ``folder``. ``torch_report`` is the
    result of `ask_torch`.
    """
    return [
        Finding("Python", "ok", f"{platform.python_version()} on {platform.platform()}"),
        _driver(),
        *_gpus(),
        _torch(torch_report, visible_gpus()),
        _vllm(bool(torch_report.gpus)),
        _compiler(),
        _libraries(),
        _processors(),
        _memory(),
        _shared_memory(),
        _disk(folder),
        _models(),
    ]


def installed_version(module: str) -> str:
    """Return the version of an installed module, or ``version unknown`` without a distribution. The
    distribution may have a different name: vLLM for CPUs is not called vllm.
    """
    names = importlib.metadata.packages_distributions().get(module, [])
    if not names:
        return "version unknown"
    return importlib.metadata.version(names[0])


def versions() -> dict[str, str]:
    """Return the versions of Python, the system and the installed libraries."""
    installed = {"python": platform.python_version(), "system": platform.platform()}
    for library in LIBRARIES:
        if importlib.util.find_spec(library) is not None:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                installed[library] = importlib.metadata.version(library)
    return installed


def unanswered(findings: Sequence[Finding]) -> list[str]:
    """Return the questions that these findings leave open, and how to answer each."""
    has_gpu = any(finding.item.startswith("GPU ") for finding in findings)
    questions = [
        "how long a step takes and how much memory it needs: trainer run PRESET max_steps=1",
        "whether a preset fits into memory: trainer presets PRESET prints the estimate",
    ]
    if has_gpu:
        questions += [
            "whether vLLM starts and ranks reach each other over NCCL: "
            "trainer rehearse PRESET --device cuda",
            "whether other users or jobs will take these GPUs later",
        ]
    else:
        questions += [
            "how this configuration behaves on a GPU, because none is visible: "
            "trainer rehearse PRESET runs it at reduced size on the CPU"
        ]
    return questions


def ask_torch(timeout_s: float = TORCH_TIMEOUT_S) -> TorchReport:
    """Return torch's version and GPUs, determined in another process."""
    if importlib.util.find_spec("torch") is None:
        return TorchReport(error="torch is not installed")
    try:
        done = subprocess.run(
            # -P: do not import a file torch.py in the current folder instead
            [sys.executable, "-P", "-c", _TORCH],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return TorchReport(error=f"torch did not answer within {timeout_s:g} s")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return TorchReport(error=f"torch cannot be imported: {lines[-1]}")
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    gpus = tuple(f"{name} (compute {major}.{minor})" for name, major, minor in answer["gpus"])
    return TorchReport(answer["version"], answer["cuda"], gpus, answer["reason"])


def _driver() -> Finding:
    if shutil.which("nvidia-smi") is None:
        return Finding("NVIDIA driver", "missing", "nvidia-smi is not on PATH")
    version = driver_version()
    if version is None:
        return Finding(
            "NVIDIA driver", "problem", "nvidia-smi fails or does not answer", "run nvidia-smi"
        )
    return Finding("NVIDIA driver", "ok", version)


def _gpus() -> list[Finding]:
    """Return one row for each GPU that the driver reports, with its total memory and the memory in
    use [GB].
    """
    rows = query_gpus("name,memory.total,memory.used")
    findings = []
    for index, row in enumerate(rows):
        name, total, used = [cell.strip() for cell in row.split(",")]
        if not (total.isdigit() and used.isdigit()):  # "[N/A]" with some virtual GPUs
            findings.append(Finding(f"GPU {index}", "unknown", f"{name}, memory {total}"))
            continue
        total_gb, used_gb = (int(mebibytes) * 2**20 / _GB for mebibytes in (total, used))
        in_use = used_gb > 0.05 * total_gb
        findings.append(
            Finding(
                item=f"GPU {index}",
                state="ok",
                found=f"{name}, {total_gb:.0f} GB, {used_gb:.1f} GB in use",
                advice="end the processes that nvidia-smi lists" if in_use else "",
            )
        )
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        findings.append(
            Finding("CUDA_VISIBLE_DEVICES", "ok", chosen or "empty: all GPUs are hidden")
        )
    return findings or [
        Finding("GPUs", "missing", "none", "set parallel.device=cpu to run GPU presets")
    ]


def _torch(report: TorchReport, wanted: int) -> Finding:
    """Return whether torch can use the GPUs. ``wanted`` is the number of GPUs that the driver and
    CUDA_VISIBLE_DEVICES offer.
    """
    if report.error:
        return Finding("torch", "problem", report.error, "make install, or make install-gpu")
    build = f"CUDA {report.cuda}" if report.cuda else "a build for CPUs"
    found = f"{report.version}, {build}"
    if report.gpus:
        found += f"; uses {counted(len(report.gpus), 'GPU')}: {', '.join(sorted(set(report.gpus)))}"
    if len(report.gpus) >= wanted:
        return Finding("torch", "ok", found)
    found += f"; uses {len(report.gpus)} of {wanted} GPUs"
    found += f": {report.reason}" if report.reason else ""
    advice = "check the driver's version and CUDA_VISIBLE_DEVICES (docs/guides/gpu.md)"
    if report.cuda is None:
        advice = "make install-gpu installs torch with CUDA"
    return Finding("torch", "problem", found, advice)


def _vllm(has_gpu: bool) -> Finding:
    if importlib.util.find_spec("vllm") is None:
        advice = "make install-gpu, or rollout.engine=transformers" if has_gpu else ""
        return Finding("vLLM", "missing", "not installed", advice)
    return Finding("vLLM", "ok", installed_version("vllm"))


def _compiler() -> Finding:
    try:
        check_compiler()
    except MissingError as error:
        state: State = "problem" if importlib.util.find_spec("vllm") else "missing"
        return Finding("C compiler", state, error.what, error.hint)
    nvcc = shutil.which("nvcc") or "no nvcc"
    ninja = shutil.which("ninja") or "no ninja"
    return Finding("C compiler", "ok", f"compiles with Python.h; {nvcc}, {ninja}")


def _libraries() -> Finding:
    shown = [name for name in LIBRARIES if name not in ("torch", "vllm", "numpy", "triton")]
    installed = versions()
    lacking = [name for name in ("transformers", "accelerate") if name not in installed]
    found = ", ".join(f"{name} {installed.get(name, 'not installed')}" for name in shown)
    if lacking:
        return Finding("libraries", "problem", found, "make install")
    return Finding("libraries", "ok", found)


def _processors() -> Finding:
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0]
    found = f"{cores} cores, load {load:.1f}"
    if available is not None and available < cores:
        found = f"{available} of {cores} cores for this process, load {load:.1f}"
    busy = load > (available or cores)
    advice = (
        "other programs are running: OMP_WAIT_POLICY=PASSIVE limits the slowdown" if busy else ""
    )
    return Finding("CPU", "ok", found, advice)


def _memory() -> Finding:
    memory = psutil.virtual_memory()
    found = f"{memory.available / _GB:.1f} of {memory.total / _GB:.1f} GB available"
    limit = memory_limit()
    if limit is not None and limit < memory.total:
        found += f"; this container may use {limit / _GB:.1f} GB"
    return Finding("memory", "ok", found)


def memory_limit(groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the memory limit of this container [bytes], or None if none is set or readable."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return int((groups / name).read_text())
    return None


def _shared_memory() -> Finding:
    path = Path("/dev/shm")
    if not path.is_dir():
        return Finding("shared memory", "unknown", "no /dev/shm")
    free = shutil.disk_usage(path).free
    if free < _GB:
        return Finding(
            "shared memory",
            "problem",
            f"{free / _GB:.2f} GB free in /dev/shm; Ray, NCCL and vLLM need more",
            "start the container with --shm-size 4g",
        )
    return Finding("shared memory", "ok", f"{free / _GB:.1f} GB free in /dev/shm")


def _disk(folder: Path) -> Finding:
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    found = f"{free / _GB:.1f} GB free for {folder}"
    if not os.access(existing, os.W_OK):
        return Finding(
            "disk", "problem", f"{existing} is not writable", "choose another --runs-dir"
        )
    if free < MIN_FREE_BYTES:
        return Finding(
            "disk",
            "problem",
            found,
            "free some disk space, or choose another folder with --runs-dir",
        )
    return Finding("disk", "ok", found)


def _models() -> Finding:
    # same as in huggingface_hub; also works without a home folder
    home = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    models = sorted(path.name.removeprefix("models--") for path in hub.glob("models--*"))
    names = [name.replace("--", "/") for name in models]
    found = f"in {hub}: {listed(names, 5) or 'none'}"
    if _offline():
        found += "; HF_HUB_OFFLINE=1: nothing is downloaded"
    return Finding("models", "ok", found)


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
