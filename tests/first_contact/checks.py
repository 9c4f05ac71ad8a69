"""The parts of `make first-contact` that are not tests: each runs as a process of its own,
``python -m tests.first_contact.checks NAME``.
"""

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.random_model import make_prompts, save_random_model
from trainer.parallel.gpus import check_compiler, driver_version

# prompts of a timed step: enough for full microbatches, few enough to finish in minutes
STEP_PROMPTS = 16
PROMPT_WORDS = 60
PROMPT_TOKENS = 256
# preset -> model whose shape the random weights have
RANDOM_MODELS = {
    "kk_0.5b": "Qwen/Qwen2.5-0.5B",
    "kk_3b_lora:ar_lopti": "Qwen/Qwen2.5-3B",
    "kk_3b:ar_lopti": "Qwen/Qwen2.5-3B",
}
RANKS = {"kk_3b:ar_lopti": 4}


def main() -> int:
    """Run the check named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", choices=list(_CHECKS))
    parser.add_argument("--preset", help="preset of the step (default: tiny_kk as it is)")
    parser.add_argument("--folder", type=Path, default=Path("doctor-report"))
    arguments = parser.parse_args()
    _CHECKS[arguments.check](arguments)
    return 0


def report_driver() -> None:
    """Print the GPUs that torch sees, and time a matrix product."""
    import torch

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


def compile_kernels() -> None:
    """Compile one line of C, as vLLM's kernels need, and on a GPU one kernel with Triton."""
    import torch

    check_compiler()
    print("a C compiler and Python.h are there")
    if torch.cuda.is_available():
        doubled = torch.compile(lambda values: values * 2 + 1)(torch.arange(1000.0, device="cuda"))
        assert torch.equal(doubled.cpu(), torch.arange(1000.0) * 2 + 1)
        print("Triton compiled a kernel, and its result is right")
        print(f"FlashInfer would use ninja {shutil.which('ninja')}, nvcc {shutil.which('nvcc')}")


def probe_memory() -> None:
    """Print the facts that tensor parallelism and the memory estimate depend on: whether torch's
    segments are expandable, whether other processes can open their memory, and the memory of an
    NCCL process group.
    """
    import torch

    from trainer.parallel.device import local_device
    from trainer.parallel.ranks import exit_rank, join_ranks, leave_ranks

    if not torch.cuda.is_available():
        print("no GPU: nothing to probe")
        return
    device = local_device("cuda")
    tensor = torch.ones(1 << 26, dtype=torch.uint8, device=device)
    segments = torch.cuda.memory._snapshot()["segments"]
    print(f"expandable segments: {any(segment['is_expandable'] for segment in segments)}")
    handle = ctypes.create_string_buffer(64)
    code = _cuda_runtime().cudaIpcGetMemHandle(handle, ctypes.c_void_p(tensor.data_ptr()))
    print(f"cudaIpcGetMemHandle returns {code} (0: other processes can open this memory)")
    free = torch.cuda.mem_get_info(device)[0]
    join_ranks(60.0, device)
    torch.distributed.all_reduce(tensor)
    torch.cuda.synchronize(device)
    taken = free - torch.cuda.mem_get_info(device)[0]
    print(f"a process group of one rank takes {taken / 1e9:.2f} GB", flush=True)
    leave_ranks()
    exit_rank(0)


def _cuda_runtime() -> ctypes.CDLL:
    """Return the CUDA runtime library that torch has loaded into this process."""
    for line in Path("/proc/self/maps").read_text("utf-8", "replace").splitlines():
        path = line.rpartition(" ")[2]
        if "libcudart" in path:
            return ctypes.CDLL(path)
    raise RuntimeError("torch has not loaded libcudart")


def time_engine(folder: Path) -> None:
    """Time vLLM's decoding of random weights: the second call of each combination of seeds and
    log-probabilities.
    """
    import torch

    from trainer.config.rollout import VllmConfig
    from trainer.parallel.device import local_device
    from trainer.rollouts.vllm.isolation import (
        preserve_environment,
        preserve_threads,
        vllm_settings,
    )
    from trainer.rollouts.vllm.setup import EngineSetup, llm_options

    device = local_device()
    on_gpu = device.type == "cuda"
    shape = "Qwen/Qwen2.5-3B" if on_gpu else "tiny"
    rows, tokens = (128, 1024) if on_gpu else (4, 16)
    model = _random_model_folder(folder, shape)
    setup = EngineSetup(
        source=str(model),
        max_model_len=PROMPT_TOKENS + tokens,
        dtype="bfloat16",
        settings=VllmConfig(gpu_memory_utilization=0.8, sleep_level=0),
        requests=rows,
    )
    # ids that every vocabulary has; the first differs, so that no prefix is shared
    rest = [2 + position % PROMPT_WORDS for position in range(1, PROMPT_TOKENS)]
    prompts = [{"prompt_token_ids": [2 + row % PROMPT_WORDS, *rest]} for row in range(rows)]
    with preserve_environment(), preserve_threads(), vllm_settings(0, tensor_parallel=1):
        from vllm import LLM, SamplingParams

        llm = LLM(**llm_options(setup, device, ranks=1))
        for seeds in (True, False):
            for logprobs in (True, False):
                params = [
                    SamplingParams(
                        max_tokens=tokens,
                        ignore_eos=True,
                        detokenize=False,
                        temperature=1.0,
                        seed=row if seeds else None,
                        logprobs=0 if logprobs else None,
                    )
                    for row in range(rows)
                ]
                for _ in range(2):
                    started = time.perf_counter()
                    llm.generate(prompts, params, use_tqdm=False)
                    seconds = time.perf_counter() - started
                print(
                    f"{rows} rows of {tokens} tokens, seeds {seeds}, log-probabilities {logprobs}: "
                    f"{seconds:.2f} s, {1000 * seconds / tokens:.2f} ms per token",
                    flush=True,
                )
    name = torch.cuda.get_device_name() if on_gpu else "CPU"
    print(f"{name}: {shape} with random weights, the second call of each")


def take_a_step(preset: str | None, folder: Path) -> None:
    """Train one step of a preset with random weights on generated prompts, or of ``tiny_kk`` as it
    is; print its seconds by phase and its memory.
    """
    runs = folder / "runs"
    name = f"step-{time.time_ns()}"
    command = ["-m", "trainer", "run", preset or "tiny_kk", "max_steps=1", "--offline"]
    if preset is not None:
        command += _random_model(preset, folder)
        ranks = RANKS.get(preset, 1)
        if ranks > 1:
            launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
            command = [*launcher, *command]
    command += ["--name", name, "--runs-dir", str(runs)]
    subprocess.run([sys.executable, *command], check=True)
    lines = (runs / name / "metrics.jsonl").read_text("utf-8").splitlines()
    merged: dict[str, float] = {}
    for line in lines:
        merged |= json.loads(line)
    shown = [key for key in merged if key.startswith(("memory/", "time/"))]
    shown.sort(key=lambda key: key != "time/step")  # the whole step, then its phases
    print(", ".join(f"{key} {merged[key]:.2f}" for key in shown))


def _random_model_folder(folder: Path, shape: str) -> Path:
    """Save a random model of a known shape unless an earlier part has, and return its folder."""
    model = folder / f"random-{shape.rpartition('-')[2]}"
    if not (model / "config.json").exists():
        model.mkdir(parents=True, exist_ok=True)
        save_random_model(model, shape)
    return model


def _random_model(preset: str, folder: Path) -> list[str]:
    """Return the overrides that put a random model and generated prompts into a preset."""
    model = _random_model_folder(folder, RANDOM_MODELS[preset])
    data = model / "prompts.jsonl"
    prompts = make_prompts(4 * STEP_PROMPTS, PROMPT_TOKENS, PROMPT_WORDS)
    data.write_text("\n".join(json.dumps({"prompt": text, "answer": "-"}) for text in prompts))
    return [
        f"model.name_or_path={model}",
        "data.task=custom",
        f"data.train={data}",
        "data.prompt_format=raw",
        "reward.functions={'benchmarks.random_model:reward_tokens': 1.0}",
        f"rollout.prompts_per_step={STEP_PROMPTS}",
        f"optim.update_batch_size={STEP_PROMPTS * 4}",
        f"evaluation.sets={{dev: {{source: {data}, limit: 4}}}}",
    ]


def lose_a_rank(folder: Path) -> None:
    """Kill one of two ranks after a checkpoint, check that no process of the run is left, and
    resume.
    """
    runs = folder / "runs"
    name = f"lost-rank-{time.time_ns()}"
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    command = [sys.executable, *launcher, "-m", "trainer"]
    settings = [
        "parallel.strategy=ddp",
        "max_steps=4",
        "evaluation.every_steps=1",
        "checkpoint.every_steps=1",
        "evaluation.sets.dev.size=2",
    ]
    place = ["--runs-dir", str(runs)]
    run = subprocess.Popen(
        [*command, "run", "tiny_kk", *settings, "--offline", *place, "--name", name]
    )
    while not (runs / name / "checkpoints" / "step-2").exists():
        if run.poll() is not None:
            raise RuntimeError(f"the run ended with status {run.returncode} before its second step")
        time.sleep(0.1)
    ranks = psutil.Process(run.pid).children()
    ranks[-1].kill()
    killed = time.monotonic()
    status = run.wait()
    _, alive = psutil.wait_procs(ranks, timeout=5)
    print(f"the launcher ended with {status}, {time.monotonic() - killed:.0f} s after the kill")
    if status == 0 or alive:
        raise RuntimeError(f"status {status}, {len(alive)} ranks left after one was killed")
    subprocess.run([*command, "resume", name, *place], check=True)
    last = (runs / name / "metrics.jsonl").read_text("utf-8").splitlines()[-1]
    print(f"the resumed run is complete at step {json.loads(last)['step']}")


def run_two_trials(
    folder: Path, gpus: float | None = None, at_once: int = 1, steps: int = 2
) -> None:
    """Run a sweep of two trials: by default sequentially in the same process; or ``at_once``
    on parts of a GPU.
    """
    import torch

    if gpus is None:
        gpus = min(1, torch.cuda.device_count())
    overrides = [
        f"trainer.max_steps={steps}",
        "trainer.evaluation.every_steps=1",
        "objective.window=1",
        "search.configurations=0",
        "seeds=[0]",
        f"limits.max_concurrent={at_once}",
        f"resources.gpus_per_trial={gpus}",
        "baselines=[{algorithm.ar_alpha: 0.0, lopti: false}, {algorithm.ar_alpha: 0.3, lopti: "
        "false}]",
    ]
    name = f"two-trials-{time.time_ns()}"
    place = ["--offline", "--name", name, "--runs-dir", str(folder / "runs")]
    started = time.monotonic()
    # `-m` puts the current folder first on sys.path; sweep/__main__.py moves it last
    command = [sys.executable, "-m", "sweep", "run", "quickstart", *place, *overrides]
    subprocess.run(command, check=True, env=os.environ)
    print(f"both trials are complete after {time.monotonic() - started:.0f} s")


_CHECKS: dict[str, Callable[[argparse.Namespace], None]] = {
    "driver": lambda arguments: report_driver(),
    "compiler": lambda arguments: compile_kernels(),
    "memory-probe": lambda arguments: probe_memory(),
    "engine": lambda arguments: time_engine(arguments.folder),
    "step": lambda arguments: take_a_step(arguments.preset, arguments.folder),
    "two-trials": lambda arguments: run_two_trials(arguments.folder),
    "lost-rank": lambda arguments: lose_a_rank(arguments.folder),
    "shared-gpu": lambda arguments: run_two_trials(arguments.folder, gpus=0.5, at_once=2, steps=10),
}


if __name__ == "__main__":
    sys.exit(main())
