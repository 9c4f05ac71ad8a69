"""Measure a GRPO step of a model with random weights on one GPU, by phase and update rule, compared
with TRL's GRPOTrainer.

    python -m benchmarks.gpu_step                   # Qwen2.5-0.5B's shape, 32 x 8 x 512 tokens
    python -m benchmarks.gpu_step --model 3B --prompts 16
    # on any CPU, to try the script:
    python -m benchmarks.gpu_step --model tiny --prompts 2 --tokens 16 --steps 1

Each row runs in its own process: plain GRPO, AR, Lopti, both, plain GRPO without gradient
checkpointing, the same with compiled layers, and TRL if it is installed (`pip install trl==1.16`).
On both sides vLLM samples if it is installed, else transformers. Prints seconds by phase, tokens
per second of the update, its model FLOP utilization (6 P + 12 layers x width x length FLOPs per
token), peak memory, and the cost of Lopti as a ratio (table 6 of arXiv:2505.12929: training 2.0x, a
full step 1.45x).

The script has never run completely on a GPU, only on a CPU with --model tiny.
"""

import argparse
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.against_trl import GROUP_SIZE, train_with_trl
from benchmarks.random_model import make_prompts, save_random_model
from research.tables import print_rows
from trainer.policy.architectures import model_size

WORDS = 60  # number of different words in prompts
ALPHA = 0.3
KEPT = {"model.gradient_checkpointing": False}
# row -> whether AR is on, whether Lopti is on, and other settings
RULES: dict[str, tuple[bool, bool, dict[str, Any]]] = {
    "plain": (False, False, {}),
    "AR": (True, False, {}),
    "Lopti": (False, True, {}),
    "AR + Lopti": (True, True, {}),
    "plain, activations kept": (False, False, KEPT),
    "plain, compiled layers": (False, False, KEPT | {"model.compile": "layers"}),
}
PHASES = ("rollout", "logprobs", "update", "sync", "step")
MODELS = {"tiny": "tiny", **{size: f"Qwen/Qwen2.5-{size}" for size in ("0.5B", "1.5B", "3B", "7B")}}
# dense bfloat16, from the data sheets
PEAK_FLOPS = {"A100": 312e12, "H100": 989e12, "H200": 989e12, "B200": 2250e12}
TRL = "TRL"


def prompts(arguments: argparse.Namespace) -> list[str]:
    return make_prompts(arguments.prompts * (arguments.steps + 1), arguments.prompt_tokens, WORDS)


def run_ours(folder: Path, arguments: argparse.Namespace) -> list[dict[str, float]]:
    """Return the seconds of every step by phase."""
    from trainer.config.schema import TrainConfig, apply_overrides
    from trainer.loop import Trainer
    from trainer.tracking.tracker import NullTracker
    from trainer.types import RunContext

    data = folder / "prompts.jsonl"
    data.write_text(
        "\n".join(json.dumps({"prompt": text, "answer": "-"}) for text in prompts(arguments))
    )
    reweighted, isolated, settings = RULES[arguments.side]
    # A random model gives every token about this probability: with the paper's 0.5 the second pass
    # would be empty.
    eta = 1 / model_size(MODELS[arguments.model]).settings["vocab_size"]
    config = TrainConfig.model_validate(
        {
            "model": {"name_or_path": str(folder), "gradient_checkpointing": True},
            "data": {"task": "custom", "train": str(data), "prompt_format": "raw"},
            "reward": {"functions": {"benchmarks.random_model:reward_tokens": 1.0}},
            "rollout": {
                "prompts_per_step": arguments.prompts,
                "group_size": GROUP_SIZE,
                "temperature": 1.0,
                "max_new_tokens": arguments.tokens,
                "vllm": {"gpu_memory_utilization": arguments.vllm_fraction},
            },
            "algorithm": {
                "kl_coef": 0.001,
                "ar_alpha": ALPHA if reweighted else 0.0,
                "lopti_eta": eta if isolated else 0.0,
            },
            "optim": {"update_batch_size": arguments.prompts * GROUP_SIZE},
            "evaluation": {"sets": {"dev": {"source": str(data), "limit": 1}}},
            "max_steps": arguments.steps + 1,
        }
    )
    config = apply_overrides(config, settings)
    trainer = Trainer(
        config, RunContext(folder / "run", folder, "benchmark", "benchmark"), NullTracker()
    )
    steps = [trainer.training_step() for _ in range(arguments.steps + 1)]
    trainer.close()
    return [{phase: step.get(f"time/{phase}", 0.0) for phase in PHASES} for step in steps]


def run_trl(folder: Path, arguments: argparse.Namespace) -> list[dict[str, float]]:
    """Return the seconds of every step. TRL does not report phases."""
    import torch
    from transformers import AutoModelForCausalLM

    on_gpu = torch.cuda.is_available()
    vllm = importlib.util.find_spec("vllm") is not None
    sampling = {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": arguments.vllm_fraction,
    }
    seconds = train_with_trl(
        folder,
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        prompts(arguments),
        arguments.steps + 1,
        arguments.tokens,
        use_cpu=not on_gpu,
        bf16=on_gpu,
        gradient_checkpointing=True,
        per_device_train_batch_size=GROUP_SIZE,
        gradient_accumulation_steps=arguments.prompts,
        **(sampling if vllm else {}),
    )
    return [{"step": second} for second in seconds]


def measured(side: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the measurements of one row, from its own process."""
    with tempfile.TemporaryDirectory() as folder:
        save_random_model(Path(folder), MODELS[arguments.model])
        command = [sys.executable, "-m", "benchmarks.gpu_step", "--side", side, "--folder", folder]
        for name in ("model", "prompts", "prompt_tokens", "tokens", "steps", "vllm_fraction"):
            command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    measurements: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return measurements


def measure_side(arguments: argparse.Namespace) -> None:
    """Run one row and print its measurements as JSON."""
    import torch

    steps = (run_trl if arguments.side == TRL else run_ours)(arguments.folder, arguments)
    on_gpu = torch.cuda.is_available()
    peak = (
        torch.cuda.max_memory_allocated()
        if on_gpu
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    device = torch.cuda.get_device_name() if on_gpu else "CPU"
    counted = steps[1:]
    medians = {phase: statistics.median(step[phase] for step in counted) for phase in counted[0]}
    print(json.dumps({"seconds": medians, "memory_in_use": peak, "device": device}))


def row(side: str, measurements: dict[str, Any], arguments: argparse.Namespace) -> list[str]:
    size = model_size(MODELS[arguments.model])
    seconds = measurements["seconds"]
    length = arguments.prompt_tokens + arguments.tokens
    tokens = arguments.prompts * GROUP_SIZE * length
    per_token = 6 * size.parameters
    per_token += 12 * size.settings["num_hidden_layers"] * size.settings["hidden_size"] * length
    peak = next(
        (flops for name, flops in PEAK_FLOPS.items() if name in measurements["device"]), None
    )
    cells = [f"{seconds[phase]:.2f}" if phase in seconds else "" for phase in PHASES]
    passes = 2 if "Lopti" in side else 1
    speed = passes * tokens / seconds["update"] if "update" in seconds else None
    used = f"{100 * speed * per_token / peak:.1f}%" if speed and peak else "unknown"
    return [
        side,
        *cells,
        f"{speed:,.0f}" if speed else "",
        used,
        f"{measurements['memory_in_use'] / 1e9:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=list(MODELS), default="0.5B")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=512, help="new tokens per completion")
    parser.add_argument("--steps", type=int, default=3, help="measured steps, after a warm-up step")
    parser.add_argument(
        "--vllm-fraction", type=float, default=0.3, help="fraction of the GPU's memory"
    )
    parser.add_argument(
        "--sides", nargs="+", choices=[*RULES, TRL], help="rows to measure (default: all)"
    )
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        measure_side(arguments)
        return
    everything = [*RULES, *([TRL] if importlib.util.find_spec("trl") else [])]
    sides = arguments.sides or everything
    costs = {side: measured(side, arguments) for side in sides}
    headings = [
        "",
        *(f"{phase} s" for phase in PHASES),
        "update tokens/s",
        "utilization",
        "peak GB",
    ]
    title = (
        f"{MODELS[arguments.model]} on {costs[sides[0]]['device']}, {arguments.prompts} x "
        f"{GROUP_SIZE} completions"
    )
    print_rows(title, headings, [row(side, costs[side], arguments) for side in sides])
    if "plain" in costs and "Lopti" in costs:
        plain = costs["plain"]["seconds"]
        lopti = costs["Lopti"]["seconds"]
        training, step = (lopti[phase] / plain[phase] for phase in ("update", "step"))
        print(f"Lopti costs {training:.2f}x in training, {step:.2f}x a step")
    if TRL in costs and "plain" in costs:
        ours = costs["plain"]["seconds"]["step"]
        print(f"speed: {costs[TRL]['seconds']['step'] / ours:.2f}x TRL's")
    elif TRL not in everything:
        print("TRL is not installed here: pip install trl==1.16")


if __name__ == "__main__":
    main()
