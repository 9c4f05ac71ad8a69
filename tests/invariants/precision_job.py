"""What one rank does in tests of bfloat16: log-probabilities of a long text by policy, reference and engine."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.invariants.ranks import be_a_rank
from tests.invariants.train_job import small_config
from tests.trainer.test_loop import Recorder
from trainer.loop import Trainer
from trainer.parallel.start import make_parallel
from trainer.policy.logprobs import LogprobModel
from trainer.rollouts.engine import SamplingParams
from trainer.types import RunContext

LENGTH = 2048
SAMPLING = SamplingParams(0.7, max_new_tokens=16)


def long_text(model: PreTrainedModel) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, model.config.vocab_size, (1, LENGTH), generator=generator)


@torch.no_grad()
def logprobs(model: nn.Module, ids: Tensor, prompt: int = 1) -> Tensor:
    scores: Tensor = model(ids, torch.tensor([prompt]), torch.ones(1, ids.shape[1] - prompt)).logprobs[0]
    return scores


def as_transformers_loads(model: Path, stored: torch.dtype, computed: torch.dtype) -> Tensor:
    """By a model that nothing but transformers has touched."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=stored)
    return logprobs(LogprobModel(loaded, 0.7, 512, computed), long_text(loaded))


def measure(model: Path, folder: Path, overrides: dict[str, Any]) -> dict[str, Any]:
    low, full = torch.bfloat16, torch.float32
    plain = {
        "bfloat16": as_transformers_loads(model, low, full),  # computed in what it is stored in
        "float32": as_transformers_loads(model, full, low),
    }
    config = small_config(model, {"model.dtype": "bfloat16", "rollout.temperature": 0.7, **overrides})
    parallel = make_parallel(config)
    trainer = Trainer(config, RunContext(folder, folder, "test", "run"), Recorder(), parallel=parallel)
    ids = long_text(trainer.models.causal_lm)
    of_policy, of_reference = (logprobs(m, ids) for m in (trainer.models.policy, trainer.models.reference))
    [[sample]] = trainer.engine.generate([ids[0].tolist()], [[1]], SAMPLING)
    sampled = torch.tensor([[*ids[0].tolist(), *sample.token_ids]])
    again = logprobs(trainer.models.policy, sampled, LENGTH)
    stored = "bfloat16" if trainer.models.stored_dtype == low else "float32"
    buffers = [*trainer.models.causal_lm.buffers(), *trainer.models.reference.buffers()]
    results = {
        "stored": stored,
        "buffers": sorted({str(buffer.dtype) for buffer in buffers}),
        "transformers": float((of_policy - plain[stored]).abs().max()),
        "reference": float((of_policy - of_reference).abs().max()),
        "engine": float((again - torch.tensor(sample.logprobs)).abs().mean()),
    }
    trainer.close()
    return results


def work(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    return {name: measure(Path(job["model"]), folder / name, case) for name, case in job["cases"].items()}


if __name__ == "__main__":
    be_a_rank(work)
