"""Compare the tokens per second of the transformers engine with `generate` of transformers, in one
run.

    OMP_NUM_THREADS=1 python -m benchmarks.rollout_throughput
    OMP_NUM_THREADS=1 python -m benchmarks.rollout_throughput --model tiny --prompts 16 --tokens 160

Both sample the same number of completions of the same puzzles alternately, at temperature 1 on one
thread. The result is the median over the rounds, in CPU seconds, which other processes disturb
least. With `full`, every completion runs to the limit. With `stop`, it ends at the model's end
token, as in rollouts (tiny model only; tokens after it are not counted).
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Qwen2ForCausalLM

from benchmarks.models import small_qwen2
from trainer.policy.architectures import TINY_FOLDER
from trainer.problems.tasks.knights_knaves import PREFILL, compact_prompt
from trainer.problems.tasks.puzzle_generator import generate
from trainer.rollouts.engine import SamplingParams
from trainer.rollouts.transformers import TransformersEngine

GROUP_SIZE = 8


def make_model(name: str) -> PreTrainedModel:
    if name == "tiny":
        return AutoModelForCausalLM.from_pretrained(TINY_FOLDER).eval()
    torch.manual_seed(0)
    return Qwen2ForCausalLM(small_qwen2()).eval()


def engine_run(
    model: PreTrainedModel, prompts: list[list[int]], limit: int, stop_ids: tuple[int, ...]
) -> Callable[[int], int]:
    engine = TransformersEngine(model, pad_token_id=0)
    params = SamplingParams(temperature=1.0, max_new_tokens=limit, stop_token_ids=stop_ids)

    def run(seed: int) -> int:
        seeds = [
            [seed * 10_000 + p * GROUP_SIZE + g for g in range(GROUP_SIZE)]
            for p in range(len(prompts))
        ]
        return sum(
            len(sample.token_ids)
            for group in engine.generate(prompts, seeds, params)
            for sample in group
        )

    return run


def generate_run(
    model: PreTrainedModel, prompts: list[list[int]], limit: int, stop_ids: tuple[int, ...]
) -> Callable[[int], int]:
    length = max(map(len, prompts))
    input_ids = torch.tensor([[0] * (length - len(p)) + p for p in prompts])
    attention_mask = torch.tensor([[0] * (length - len(p)) + [1] * len(p) for p in prompts])

    def run(seed: int) -> int:
        torch.manual_seed(seed)
        output = model.generate(
            input_ids,
            attention_mask=attention_mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=limit,
            num_return_sequences=GROUP_SIZE,
            eos_token_id=list(stop_ids) or None,
            pad_token_id=0,
        )
        completions = output[:, length:]
        return int((completions != 0).sum()) if stop_ids else completions.numel()

    return run


def tokens_per_second(runs: dict[str, Callable[[int], int]], rounds: int) -> dict[str, float]:
    """Return the median speed of each run; all of them run in every round."""
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    for seed in range(rounds):
        for name, run in runs.items():
            started = time.process_time()
            tokens = run(seed)
            speeds[name].append(tokens / (time.process_time() - started))
    return {name: statistics.median(values) for name, values in speeds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", choices=("tiny", "small"), action="append", help="model (default: both)"
    )
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128, help="maximum tokens per completion")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(TINY_FOLDER)
    puzzles = generate("dev", [2, 3], arguments.prompts, seed=0)
    prompts = [tokenizer(compact_prompt(puzzle) + PREFILL)["input_ids"] for puzzle in puzzles]
    for name in arguments.model or ("tiny", "small"):
        model = make_model(name)
        model.generation_config.eos_token_id = None
        endings = (
            {"full": (), "stop": (tokenizer.eos_token_id,)} if name == "tiny" else {"full": ()}
        )
        for ending, stop_ids in endings.items():
            speed = tokens_per_second(
                {
                    "engine": engine_run(model, prompts, arguments.tokens, stop_ids),
                    "generate": generate_run(model, prompts, arguments.tokens, stop_ids),
                },
                arguments.rounds,
            )
            print(
                f"{name} ({model.num_parameters():,} parameters), {arguments.prompts} x "
                f"{GROUP_SIZE} completions, {arguments.tokens} tokens, {ending}: engine "
                f"{speed['engine']:,.0f} tokens/s, generate {speed['generate']:,.0f} tokens/s, "
                f"ratio {speed['engine'] / speed['generate']:.1f}"
            )


if __name__ == "__main__":
    main()
