"""What one rank does in tests of bfloat16: log-probabilities of a long text by policy and
reference.
"""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tests.invariants.ranks import be_a_rank
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.parallel.models import load_models, logprob_model
from trainer.parallel.strategy import make_parallel

LENGTH = 2048


@torch.no_grad()
def measure(model: Path, stage: int) -> dict[str, Any]:
    """The largest differences from a model that nothing but transformers has touched."""
    overrides = {
        "model.name_or_path": str(model),
        "model.dtype": "bfloat16",
        "algorithm.kl_coef": 0.1,
    }
    deepspeed = {"parallel.strategy": "deepspeed", "parallel.zero_stage": stage}
    config = apply_overrides(TrainConfig(), overrides | deepspeed)
    untouched = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    ids = torch.randint(
        3, untouched.config.vocab_size, (1, LENGTH), generator=torch.Generator().manual_seed(0)
    )
    text = ids, torch.tensor([1]), torch.ones(1, LENGTH - 1)
    expected = logprob_model(untouched, config, torch.bfloat16)(*text).logprobs
    parallel = make_parallel(config)  # from here on DeepSpeed cuts what transformers loads
    models = load_models(config, parallel)
    compared = {"policy": models.policy, "reference": models.reference}
    buffers = [buffer for scores in compared.values() for buffer in scores.buffers()]
    results = {
        name: float((scores(*text).logprobs - expected).abs().max())
        for name, scores in compared.items()
    }
    parallel.close()
    return results | {"buffers": sorted({str(buffer.dtype) for buffer in buffers})}


def work(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    return {f"zero-{stage}": measure(Path(job["model"]), stage) for stage in job["stages"]}


if __name__ == "__main__":
    be_a_rank(work)
