import copy

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

from tests.conftest import random_model
from tests.trainer.algorithm.batches import make_batch
from trainer.cpu.attention import use_packed_attention
from trainer.cpu.last_layer import has_lean_last_layer
from trainer.packing import pack
from trainer.policy.logprobs import LogprobModel

PLAIN = {"llama": LlamaDecoderLayer, "qwen2": Qwen2DecoderLayer}


def scores_and_gradients(model, mask: torch.Tensor) -> list[torch.Tensor]:
    batch = make_batch()
    policy = LogprobModel(model, temperature=0.9, chunk_tokens=16)
    assert policy.packs_rows
    scores = policy(batch.input_ids, batch.prompt_lengths, mask)
    scores.logprobs.square().sum().backward()
    return [scores.logprobs.detach(), *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("share", [1.0, 0.2])
def test_positions_that_predict_are_enough_for_the_last_layer(family, share):
    lean = random_model(family)
    use_packed_attention(lean)
    assert has_lean_last_layer(lean)
    plain = copy.deepcopy(lean)
    plain.model.layers[-1].__class__ = PLAIN[family]
    assert not has_lean_last_layer(plain)
    mask = make_batch().completion_mask
    mask = mask * (torch.rand(mask.shape, generator=torch.Generator().manual_seed(0)) < share)
    seen = []
    last = lean.model.layers[-1]
    for part in (last.self_attn.q_proj, last.self_attn.k_proj, last.mlp):
        part.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[1]))
    for one, other in zip(scores_and_gradients(lean, mask), scores_and_gradients(plain, mask), strict=True):
        assert float((one - other).abs().max()) <= 1e-5 * max(1.0, float(other.abs().max()))
    batch = make_batch()
    packing = pack(batch.input_ids, batch.prompt_lengths, mask)
    predictors = len(set(packing.predicting.tolist()))  # the last token of a prompt may predict for its group
    assert seen == [predictors, len(packing.input_ids), predictors]


def test_without_a_packing_the_layer_is_the_models_own():
    lean = random_model("qwen2")
    ids = torch.arange(3, 20)[None]
    expected = lean(input_ids=ids).logits
    use_packed_attention(lean)
    assert has_lean_last_layer(lean)
    assert torch.equal(lean(input_ids=ids).logits, expected)
