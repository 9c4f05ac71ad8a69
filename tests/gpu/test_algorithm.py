"""Advantages, isolation, losses and log-probabilities on a device against published numbers and the CPU's."""

import copy

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.conftest import random_model
from tests.reference_vectors import BUNDLED, TOLERANCE, compare
from trainer.policy.flex_attention import use_flex_attention
from trainer.policy.logprobs import LogprobModel, check_packing
from trainer.rollouts.engine import SamplingParams
from trainer.rollouts.transformers import TransformersEngine


@pytest.mark.parametrize("file", BUNDLED, ids=["published", "peers"])
def test_every_rule_gives_the_recorded_numbers(device, file):
    with torch.device(device):
        outcomes = compare(file)
    assert len(outcomes) >= 5
    assert {family: found.error for family, found in outcomes.items() if found.error > TOLERANCE} == {}


def scored(model, compute_dtype, device):
    """Log-probabilities, entropies and the gradients of their sum."""
    ids = torch.randint(3, 61, (4, 200), generator=torch.Generator().manual_seed(0)).to(device)
    scorer = LogprobModel(copy.deepcopy(model).to(device), 0.7, 33, compute_dtype)
    lengths, mask = torch.tensor([20, 30, 40, 50], device=device), torch.ones(4, 150, device=device)
    scores = scorer(ids, lengths, mask, with_entropy=True)
    scores.logprobs.sum().backward()
    gradients = [parameter.grad.float().cpu() for parameter in scorer.causal_lm.parameters()]
    return scores.logprobs.detach().cpu(), scores.entropies.cpu(), torch.cat([g.flatten() for g in gradients])


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_log_probabilities_and_gradients_are_those_of_the_cpu(device, causal_lm, dtype, bound):
    expected = scored(causal_lm, torch.float32, torch.device("cpu"))
    found = scored(causal_lm, dtype, device)
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        assert (ours - theirs).abs().mean() < bound
    difference = (found[2] - expected[2]).norm() / expected[2].norm()
    assert difference < 2 * bound


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-3), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_packed_rows_give_the_numbers_of_padded_ones(device, dtype, bound, key_heads):
    """The compiled kernel on a GPU, with heads of the smallest size that it takes; the dense mask on a CPU."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": key_heads, "initializer_range": 0.15}
    padded = Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, attn_implementation="sdpa")).eval().to(device)
    packed = copy.deepcopy(padded)
    use_flex_attention(packed)
    check_packing(LogprobModel(packed, 0.7, 33, dtype))
    found = {}
    for lengths in ([300, 40, 1, 260], [30, 600, 200, 90]):  # one kernel serves both
        ids = torch.randint(3, 61, (4, 150 + max(lengths)), generator=torch.Generator().manual_seed(0)).to(device)
        ids[1, :150], ids[3, :20] = ids[0, :150].clone(), ids[2, :20].clone()
        prompts = torch.tensor([150, 150, 20, 20], device=device)
        asked = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).float().to(device)
        for name, model, computed in (("padded", padded, torch.float32), ("packed", packed, dtype)):
            model.zero_grad()
            scores = LogprobModel(model, 0.7, 33, computed)(ids, prompts, asked, with_entropy=True)
            scores.logprobs.sum().backward()
            gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
            found[name] = scores.logprobs.detach(), scores.entropies, gradients
        count = asked.sum()
        assert (found["packed"][0] - found["padded"][0]).abs().sum() / count < bound
        assert (found["packed"][1] - found["padded"][1]).abs().sum() / count < bound
        assert (found["packed"][2] - found["padded"][2]).norm() / found["padded"][2].norm() < 2 * bound


def test_the_engine_samples_what_the_cpu_samples(device):
    model, prompts, seeds = random_model(), [[5, 6, 7], [9, 8, 7, 6, 5]], [[1, 2], [3, 4]]
    params = SamplingParams(temperature=1.0, max_new_tokens=24, stop_token_ids=(2,))
    here = TransformersEngine(copy.deepcopy(model).to(device), pad_token_id=0).generate(prompts, seeds, params)
    there = TransformersEngine(model, pad_token_id=0).generate(prompts, seeds, params)
    tokens = [
        (a.token_ids, b.token_ids) for x, y in zip(here, there, strict=True) for a, b in zip(x, y, strict=True)
    ]
    assert all(a == b for a, b in tokens)
