"""GPU and compiler queries that avoid importing torch, which takes seconds."""

import os
import shutil
import subprocess
import sysconfig

from loptune.errors import MissingError, first_line

LISTING_TIMEOUT_S = 20
_COMPILER = "apt-get install gcc python3-dev, or rollout.engine=transformers"
# environment variable set by a sweep: fraction of the GPU a rank may use (default 1)
GPU_FRACTION_VARIABLE = "LOPTUNE_GPU_FRACTION"


def visible_gpus() -> int:
    """Return the number of visible GPUs: the GPUs in CUDA_VISIBLE_DEVICES, or else all GPUs that
    the driver lists.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return sum(line.startswith("GPU ") for line in _nvidia_smi("-L"))
    return sum(device.strip() not in ("", "-1") for device in chosen.split(","))


def driver_version() -> str | None:
    """Return the NVIDIA driver version, or None without a driver."""
    return next(iter(_nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")), None)


def gpu_bytes() -> int | None:
    """Return the memory of the smallest GPU that the driver lists [bytes], or None without a
    GPU.
    """
    mebibytes = query_gpus("memory.total")
    return min((int(text) << 20 for text in mebibytes if text.strip().isdigit()), default=None)


def check_compiler() -> None:
    """Check that Triton, which vLLM uses, can compile kernels, by compiling one line with the same
    compiler and headers.

    Raises:
        MissingError: no C compiler, or Python.h is missing.
    """
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise MissingError(
            "vLLM's kernels need a C compiler, but none was found",
            "PATH",
            _COMPILER,
            code="no-compiler",
        )
    headers = sysconfig.get_path("include", "posix_prefix")  # same include path as Triton
    command = [compiler, "-x", "c", "-fsyntax-only", f"-I{headers}", "-"]
    try:
        subprocess.run(
            command, input="#include <Python.h>\n", capture_output=True, text=True, check=True
        )
    except OSError as error:
        raise MissingError(
            f"vLLM's kernels need a C compiler: {error}",
            f"CC={compiler}",
            _COMPILER,
            code="no-compiler",
        ) from error
    except subprocess.CalledProcessError as error:
        reason = first_line(RuntimeError(error.stderr))
        raise MissingError(
            f"vLLM's kernels cannot be compiled: {reason}",
            compiler,
            _COMPILER,
            code="compiler-fails",
        ) from error


def query_gpus(fields: str) -> list[str]:
    """Return one line per GPU that the driver lists, with these fields of ``nvidia-smi
    --query-gpu``, memory in MiB; empty without a driver.
    """
    return _nvidia_smi(f"--query-gpu={fields}", "--format=csv,noheader,nounits")


def _nvidia_smi(*arguments: str) -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        command = ["nvidia-smi", *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LISTING_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
