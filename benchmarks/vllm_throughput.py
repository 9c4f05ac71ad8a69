"""Compare vLLM with the transformers engine on a 3-million-parameter Qwen2 on the CPU, in one run.

    OMP_NUM_THREADS=1 .venv-vllm/bin/python -m benchmarks.vllm_throughput

The engines alternately sample 64 completions (8 prompts of 64 tokens x 8) of 128 and of 512 tokens.
The result is the best round, because other processes on the machine can only slow a round down.
Then the script prints the time of a weight synchronization, and the largest difference between each
engine's log-probabilities and those of a teacher-forced pass.
"""

import argparse
import tempfile
import time

import torch
from transformers import PreTrainedModel, Qwen2ForCausalLM

from benchmarks.models import small_qwen2
from trainer.rollouts.engine import RolloutEngine, SamplingParams
from trainer.rollouts.transformers import TransformersEngine
from trainer.rollouts.vllm.engine import VllmEngine
from trainer.rollouts.vllm.setup import EngineSetup
from trainer.types import Completion

PROMPTS = 8
GROUP_SIZE = 8
PROMPT_TOKENS = 64
VOCABULARY = 128


def make_model() -> PreTrainedModel:
    torch.manual_seed(0)
    config = small_qwen2(
        vocab_size=VOCABULARY,
        tie_word_embeddings=True,
        initializer_range=0.08,
        max_position_embeddings=1024,
    )
    return Qwen2ForCausalLM(config).eval()


def sample(
    engine: RolloutEngine, prompts: list[list[int]], new_tokens: int, round_: int
) -> list[list[Completion]]:
    seeds = [
        [(round_ << 20) + p * GROUP_SIZE + g for g in range(GROUP_SIZE)] for p in range(PROMPTS)
    ]
    return engine.generate(
        prompts, seeds, SamplingParams(temperature=1.0, max_new_tokens=new_tokens)
    )


@torch.no_grad()
def largest_difference(
    model: PreTrainedModel, prompts: list[list[int]], samples: list[list[Completion]]
) -> float:
    worst = 0.0
    for prompt, group in zip(prompts, samples, strict=True):
        ids = torch.tensor([[*prompt, *s.token_ids] for s in group])
        logprobs = (
            model(input_ids=ids, use_cache=False)
            .logits[:, len(prompt) - 1 : -1]
            .log_softmax(dim=-1)
        )
        chosen = logprobs.gather(-1, ids[:, len(prompt) :, None])[..., 0]
        worst = max(
            worst, float((chosen - torch.tensor([s.rollout_logprobs for s in group])).abs().max())
        )
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, nargs="+", default=[128, 512])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = make_model()
    prompts = torch.randint(0, VOCABULARY, (PROMPTS, PROMPT_TOKENS)).tolist()
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        started = time.perf_counter()
        vllm = VllmEngine(model, EngineSetup(folder, PROMPT_TOKENS + max(arguments.new_tokens)))
        print(f"vLLM import and start: {time.perf_counter() - started:.1f} s")
    vllm.sync_weights(model)
    engines: dict[str, RolloutEngine] = {
        "vllm": vllm,
        "transformers": TransformersEngine(model, pad_token_id=0),
    }
    for engine in engines.values():
        sample(engine, prompts, 8, 99)
    for new_tokens in arguments.new_tokens:
        rates: dict[str, list[float]] = {name: [] for name in engines}
        worst = dict.fromkeys(engines, 0.0)
        for round_ in range(arguments.rounds):
            for name, engine in engines.items():
                started = time.perf_counter()
                samples = sample(engine, prompts, new_tokens, round_)
                seconds = time.perf_counter() - started
                rates[name].append(PROMPTS * GROUP_SIZE * new_tokens / seconds)
                worst[name] = max(worst[name], largest_difference(model, prompts, samples))
        for name in engines:
            print(
                f"{PROMPTS * GROUP_SIZE} x {new_tokens} {name:>12}: {max(rates[name]):6.0f} "
                f"tokens/s (all rounds: {' '.join(f'{rate:.0f}' for rate in rates[name])}), "
                f"largest |difference| {worst[name]:.1e} nats"
            )
        ratio = max(rates["vllm"]) / max(rates["transformers"])
        print(f"{PROMPTS * GROUP_SIZE} x {new_tokens}: vllm / transformers {ratio:.2f}")
    times = []
    for _ in range(10):
        started = time.perf_counter()
        vllm.sync_weights(model)
        times.append(1e3 * (time.perf_counter() - started))
    print(
        f"weight synchronization: {min(times):.0f} ms at best, "
        f"{sorted(times)[len(times) // 2]:.0f} ms median"
    )
    vllm.close()


if __name__ == "__main__":
    main()
