import pytest
import torch

from tests.conftest import random_model
from tests.trainer.algorithm.batches import make_batch
from trainer.config.schema import ModelConfig
from trainer.policy.load import load_policy
from trainer.policy.logprobs import LogprobModel


@pytest.mark.parametrize(("recompute", "calls"), [(False, 1), (True, 2)])
def test_gradient_checkpointing_computes_layers_again_in_the_backward_pass(tmp_path, recompute, calls):
    random_model().save_pretrained(tmp_path)
    config = ModelConfig(name_or_path=str(tmp_path), gradient_checkpointing=recompute)
    policy = load_policy(config, torch.device("cpu"))
    seen = []
    policy.model.layers[0].mlp.register_forward_pre_hook(lambda *_: seen.append(1))
    batch = make_batch()
    scores = LogprobModel(policy, 1.0, 16)(batch.input_ids, batch.prompt_lengths, batch.completion_mask)
    scores.logprobs.sum().backward()
    assert len(seen) == calls
