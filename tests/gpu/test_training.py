"""The trainer on one device under every strategy, in both precisions: it trains, saves and
resumes.
"""

from contextlib import nullcontext

import pytest
import torch

from tests.gpu.conftest import ON_GPU
from tests.warm import warm_interpreters
from trainer.config.schema import apply_overrides, load_config
from trainer.rehearsal.rehearse import rehearse

DEEPSPEED = {"parallel.strategy": "deepspeed", "rollout.engine": "transformers"}
STRATEGIES = {
    "none": {"rollout.engine": "transformers"},
    "ddp": {"parallel.strategy": "ddp", "rollout.engine": "transformers"},
    **{f"zero-{stage}": {**DEEPSPEED, "parallel.zero_stage": stage} for stage in range(4)},
    "zero-2-offload": {**DEEPSPEED, "parallel.zero_stage": 2, "parallel.offload": "optimizer"},
    "zero-3-offload": {**DEEPSPEED, "parallel.zero_stage": 3, "parallel.offload": "parameters"},
}


def configs(names, dtypes=("bfloat16", "float32")):
    base = load_config("kk_0.5b", {"algorithm.lopti_eta": 0.5, "algorithm.ar_alpha": 0.3})
    return {
        f"{name} {dtype}": apply_overrides(base, {**STRATEGIES[name], "model.dtype": dtype})
        for name in names
        for dtype in dtypes
    }


def strategies():
    try:
        import deepspeed  # noqa: F401
    except ImportError:
        return [name for name in STRATEGIES if not name.startswith("zero")]
    return list(STRATEGIES)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.slow), ON_GPU])
def test_every_strategy_trains_saves_and_resumes_on_one_device(device, tmp_path):
    chosen = (
        configs(strategies())
        if device == "cuda"
        else configs(["ddp", "zero-3-offload"], ["float32"])
    )
    with nullcontext() if device == "cuda" else warm_interpreters():
        for rehearsal in rehearse(chosen, tmp_path, device=device, ranks=1):
            assert rehearsal.failed() == [], rehearsal.row()


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_ranks_on_several_gpus_share_a_model_over_nccl(tmp_path):
    ranks = 4 if torch.cuda.device_count() >= 4 else 2
    for rehearsal in rehearse(
        configs(["ddp", "zero-2", "zero-3"]), tmp_path, device="cuda", ranks=ranks
    ):
        assert rehearsal.failed() == [], rehearsal.row()


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_the_paper_s_preset_in_small_on_this_gpu(tmp_path):
    [rehearsal] = rehearse({"kk_3b": load_config("kk_3b")}, tmp_path, "transformers", "cuda", 1)
    assert rehearsal.failed() == [], rehearsal.row()
