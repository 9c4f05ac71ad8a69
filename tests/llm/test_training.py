import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.trainer.test_loop import build, parameters, without_times
from trainer.config.schema import apply_overrides, load_config

pytestmark = pytest.mark.llm

SMALL = {
    "data.train.size": 4,
    "rollout.prompts_per_step": 2,
    "rollout.group_size": 4,
    "rollout.max_new_tokens": 6,
    "optim.update_batch_size": 8,
    "evaluation.at_start": False,
    "checkpoint.keep_best": False,
    "max_steps": 3,
}


def test_a_step_its_checkpoint_and_the_way_back(tmp_path, plain_model):
    config = apply_overrides(load_config("smollm2_addition"), SMALL)
    first = build(config, tmp_path / "run")
    before = parameters(first)
    metrics = first.training_step()
    # Before its first update the policy is its reference, and what it samples with is what it is
    # scored with.
    assert metrics["policy/kl"] == 0
    assert metrics["rollout/engine_logprob_diff_max"] < 1e-4
    assert metrics["rollout/zero_variance_groups"] < 1, (
        "nothing to learn from: the test needs other seeds"
    )
    moved = max(float((a - b).abs().max()) for a, b in zip(before, parameters(first), strict=True))
    # Adam's first step moves no parameter by more than the learning rate.
    assert 0.5e-5 < moved < 1.01e-5

    folder = first.save_checkpoint()
    saved = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    trained = first.models.causal_lm.state_dict()
    assert saved.keys() == trained.keys() == plain_model.state_dict().keys()
    assert all(torch.equal(saved[name], trained[name]) for name in saved)
    assert AutoTokenizer.from_pretrained(folder).decode([2]) == "<|im_end|>"

    expected = without_times(first.training_step())
    assert expected["policy/kl"] > 0
    weights = parameters(first)
    first.close()
    second = build(config, tmp_path / "run")
    assert second.resume() == 1
    assert without_times(second.training_step()) == expected
    assert all(torch.equal(a, b) for a, b in zip(weights, parameters(second), strict=True))
    second.close()
