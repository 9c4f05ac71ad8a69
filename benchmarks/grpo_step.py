"""Compare a GRPO step with TRL's GRPOTrainer, or a step of an adapter with a step of full weights.

Both sides have the same model, the same prompts and the same number of new tokens.

    python -m benchmarks.grpo_step                        # 8 x 8 x 128 tokens, vocabulary 128
    python -m benchmarks.grpo_step --prompt-tokens 297    # prompts as long as K&K puzzles
    python -m benchmarks.grpo_step --vocab 151936 --prompts 4 --tokens 64 --threads 1 \\
        --steps 1 --rounds 1
    python -m benchmarks.grpo_step --model smollm2-135m --tokens 16 --steps 1 --rounds 1
    # both with adapters, then one compared with full weights:
    python -m benchmarks.grpo_step --model smollm2-135m --tokens 16 --lora 16
    python -m benchmarks.grpo_step --model smollm2-135m --tokens 16 --lora 16 --against full \\
        --checkpointing

Both train a 3.2M-parameter Qwen2 (plus embeddings) or a pretrained model with KL 0.001. They run
alternately, each in its own process. No completion can end early. Prints seconds per step (median
of all steps), peak resident memory, and the ratios. Each round's ratio is also printed, because
other processes on the machine may slow down one side. Needs `pip install trl==1.16`.

docs/explanation/benchmarks.md has the measured ratios.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.against_trl import GROUP_SIZE, train_with_trl
from benchmarks.random_model import make_prompts, save_tokenizer

WORDS = 100  # number of different words in prompts
OURS = "loptune"
OTHERS = {"trl": "TRL's", "full": "that of full weights"}
SMALL = "small"  # name of the model with random weights


def make_model(folder: Path, vocab: int) -> None:
    """Save a random Qwen2, and a tokenizer whose EOS the model cannot sample, so that no completion
    ends early.
    """
    import torch
    from transformers import Qwen2ForCausalLM

    from benchmarks.models import small_qwen2

    torch.manual_seed(0)
    config = small_qwen2(
        vocab_size=vocab,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        eos_token_id=vocab,
        pad_token_id=0,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    save_tokenizer(folder, vocab, in_prompts=199)


def copy_model(folder: Path, name: str) -> None:
    """Save a pretrained model with an end token whose id is outside of its vocabulary, so that it
    cannot be sampled.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from trainer.config.model import ModelConfig
    from trainer.policy.load import model_source

    source = model_source(ModelConfig(name_or_path=name)).name
    tokenizer = AutoTokenizer.from_pretrained(source)
    # The unknown token, too: it may be outside of the embedding, because it is never sampled.
    tokenizer.add_special_tokens(
        {
            "eos_token": "<never>",
            "unk_token": "<never>",
            "pad_token": tokenizer.convert_ids_to_tokens(0),
        }
    )
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(source)
    for config in (model.config, model.generation_config):
        config.eos_token_id = tokenizer.eos_token_id
        config.pad_token_id = 0
    model.save_pretrained(folder)


def prompts(arguments: argparse.Namespace) -> list[str]:
    """Return as many different prompts as all steps need."""
    return make_prompts(arguments.prompts * (arguments.steps + 1), arguments.prompt_tokens, WORDS)


def run_ours(folder: Path, arguments: argparse.Namespace, rank: int = 0) -> list[float]:
    from trainer.config.schema import TrainConfig
    from trainer.loop import Trainer
    from trainer.tracking.tracker import NullTracker
    from trainer.types import RunContext

    data = folder / "prompts.jsonl"
    rows = [{"prompt": text, "answer": "-"} for text in prompts(arguments)]
    data.write_text("\n".join(map(json.dumps, rows)))
    config = TrainConfig.model_validate(
        {
            "model": {
                "name_or_path": str(folder),
                "dtype": arguments.dtype,
                "gradient_checkpointing": arguments.checkpointing,
                "lora": {"r": rank, "alpha": 2.0 * rank or 1.0},
            },
            "data": {"task": "custom", "train": str(data), "prompt_format": "raw"},
            "reward": {"functions": {"benchmarks.random_model:reward_tokens": 1.0}},
            "rollout": {
                "prompts_per_step": arguments.prompts,
                "group_size": GROUP_SIZE,
                "temperature": 1.0,
                "max_new_tokens": arguments.tokens,
            },
            "optim": {"update_batch_size": arguments.prompts * GROUP_SIZE},
            "evaluation": {"sets": {"dev": {"source": str(data), "limit": 1}}},
            "max_steps": arguments.steps + 1,
        }
    )
    context = RunContext(folder / "run", folder, "benchmark", "benchmark")
    trainer = Trainer(config, context, NullTracker())
    seconds = []
    for _ in range(arguments.steps + 1):
        metrics = trainer.training_step()
        seconds.append(metrics["time/step"])
        phases = {
            k.removeprefix("time/"): round(v, 2)
            for k, v in metrics.items()
            if k.startswith("time/")
        }
        print(
            f"  loptune {phases} length {metrics['rollout/completion_length']:.0f}", file=sys.stderr
        )
    trainer.close()
    return seconds


def run_trl(folder: Path, arguments: argparse.Namespace) -> list[float]:
    from transformers import AutoModelForCausalLM

    return train_with_trl(
        folder,
        AutoModelForCausalLM.from_pretrained(folder),
        prompts(arguments),
        arguments.steps + 1,
        arguments.tokens,
        adapter_rank=arguments.lora,
        use_cpu=True,
        bf16=arguments.dtype == "bfloat16",
        gradient_checkpointing=arguments.checkpointing,
        per_device_train_batch_size=arguments.prompts * GROUP_SIZE,
        dataloader_pin_memory=False,
    )


def peak_memory() -> float:
    """Return the peak resident memory of this process [GiB]. ru_maxrss would include the process
    that started it.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default=SMALL, help=f"{SMALL}, smollm2-135m, a GGUF file or a folder"
    )
    parser.add_argument(
        "--vocab", type=int, default=128, help=f"vocabulary size of the model {SMALL}"
    )
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        default=32,
        help="words per prompt; about 3 tokens each for other models",
    )
    parser.add_argument("--tokens", type=int, default=128, help="new tokens per completion")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--lora",
        type=int,
        default=0,
        metavar="R",
        help="rank of an adapter on both sides; 0: no adapter",
    )
    parser.add_argument(
        "--against",
        choices=OTHERS,
        default="trl",
        help="compare with TRL, or with full weights here",
    )
    parser.add_argument(
        "--checkpointing", action="store_true", help="recompute activations on both sides"
    )
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="compute dtype"
    )
    parser.add_argument("--steps", type=int, default=5, help="measured steps, after a warm-up step")
    parser.add_argument("--rounds", type=int, default=3, help="runs per side, alternately")
    parser.add_argument("--side", choices=(OURS, *OTHERS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        import torch

        torch.set_num_threads(arguments.threads)
        if arguments.side == "trl":
            seconds = run_trl(arguments.folder, arguments)
        else:
            seconds = run_ours(
                arguments.folder, arguments, arguments.lora if arguments.side == OURS else 0
            )
        print(json.dumps({"seconds": seconds[1:], "peak_gib": peak_memory()}))
        return
    other = arguments.against
    sides = (OURS, other)
    rounds = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            if arguments.model == SMALL:
                make_model(Path(folder), arguments.vocab)
            else:
                copy_model(Path(folder), arguments.model)
            rounds.append({side: measure(side, folder, arguments) for side in sides})
    step = {}
    peak = {}
    for side in sides:
        step[side] = statistics.median(
            second for measured in rounds for second in measured[side]["seconds"]
        )
        peak[side] = statistics.median(measured[side]["peak_gib"] for measured in rounds)
        print(f"{side:8} {step[side]:8.2f} s/step   peak {peak[side]:.2f} GiB")
    ratios = [
        statistics.median(r[other]["seconds"]) / statistics.median(r[OURS]["seconds"])
        for r in rounds
    ]
    ratio_text = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"speed: {step[other] / step[OURS]:.2f}x {OTHERS[other]} (rounds: {ratio_text})")
    print(f"peak memory: {peak[OURS] / peak[other]:.2f} of {OTHERS[other]}")


def measure(side: str, folder: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of each measured step and the peak memory of one side, run in its own
    process.
    """
    command = [sys.executable, "-m", "benchmarks.grpo_step", "--side", side, "--folder", folder]
    for name in (
        "vocab",
        "prompts",
        "prompt_tokens",
        "tokens",
        "threads",
        "steps",
        "lora",
        "dtype",
    ):
        command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    command += ["--checkpointing"] if arguments.checkpointing else []
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    output = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout
    measured: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return measured


if __name__ == "__main__":
    main()
