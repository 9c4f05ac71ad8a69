"""One rank of a training run that samples from vLLM: five updates, differences after each
synchronization.
"""

from pathlib import Path
from typing import Any

import torch

from tests.invariants.ranks import be_a_rank
from tests.trainer.rollouts.vllm.models import STOP, prompts, random_qwen, saved_config
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.parallel.strategy import make_parallel
from trainer.policy.logprobs import LogprobModel
from trainer.rollouts.engine import RolloutEngine, SamplingParams
from trainer.rollouts.vllm.engine import VllmEngine
from trainer.rollouts.vllm.server import VllmServerEngine
from trainer.rollouts.vllm.setup import EngineSetup

TEMPERATURE = 0.7


def as_tensors(asked, samples) -> dict[str, torch.Tensor]:
    rows = [
        (prompt, sample) for prompt, group in zip(asked, samples, strict=True) for sample in group
    ]
    length = max(len(prompt) + len(sample.token_ids) for prompt, sample in rows)
    width = max(len(sample.token_ids) for _, sample in rows)
    input_ids = torch.zeros(len(rows), length, dtype=torch.int64)
    mask = torch.zeros(len(rows), width)
    engine = torch.zeros(len(rows), width)
    for row, (prompt, sample) in enumerate(rows):
        ids = torch.tensor([*prompt, *sample.token_ids])
        input_ids[row, : len(ids)] = ids
        mask[row, : len(sample.token_ids)] = 1
        engine[row, : len(sample.token_ids)] = torch.tensor(sample.rollout_logprobs)
    lengths = torch.tensor([len(prompt) for prompt, _ in rows])
    return {"input_ids": input_ids, "lengths": lengths, "mask": mask, "engine": engine}


def work(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    config = apply_overrides(TrainConfig(), job["overrides"])
    parallel = make_parallel(config)
    model = random_qwen(tied=job["tied"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    policy, optimizer = parallel.prepare(LogprobModel(model, TEMPERATURE, 256), optimizer)
    settings = config.rollout.vllm
    engine: RolloutEngine
    if settings.mode == "server":
        engine = VllmServerEngine(settings, 128, "float32")
    else:
        engine = VllmEngine(
            model,
            EngineSetup(
                saved_config(folder / f"model-{parallel.rank}", model), 128, settings=settings
            ),
        )
    engine.sync_weights(model)

    def score(batch) -> torch.Tensor:
        return policy(batch["input_ids"], batch["lengths"], batch["mask"]).logprobs

    # Ranks ask for different numbers of completions of different prompts.
    asked = prompts([12 + parallel.rank, 30, 45][: 2 + parallel.rank], seed=parallel.rank)
    params = SamplingParams(temperature=TEMPERATURE, max_new_tokens=20, stop_token_ids=(STOP,))
    differences = []
    movements = []
    for step in range(6):
        seeds = [[1000 * step + 10 * p + g for g in range(2)] for p in range(len(asked))]
        batch = as_tensors(asked, engine.generate(asked, seeds, params))
        with torch.no_grad():
            before = score(batch)
        differences.append(float((before - batch["engine"]).abs().max()))
        if step == 5:
            break
        with parallel.microbatch(policy, is_last=True):
            total = parallel.sum(batch["mask"].sum())
            signs = torch.ones(len(before), 1)
            signs[1::2] = -0.5
            parallel.backward(-(score(batch) * signs).sum() / total)
        parallel.step(policy, optimizer, 1.0)
        engine.sync_weights(model)
        with torch.no_grad():
            movements.append(float((score(batch) - before).abs().max()))
    engine.close()
    alive = float(parallel.sum(torch.ones(())))
    parallel.close()
    return {"differences": differences, "movements": movements, "alive": alive}


if __name__ == "__main__":
    be_a_rank(work)
