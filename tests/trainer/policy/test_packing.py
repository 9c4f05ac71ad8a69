from itertools import pairwise

import pytest
import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface

from loptune.errors import ConfigError
from tests.conftest import random_model
from tests.refusals import refused
from tests.trainer.algorithm.batches import make_batch
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.parallel.models import load_models
from trainer.parallel.ranks import Parallel
from trainer.policy.logprobs import LogprobModel
from trainer.policy.packing import check_kernel, line_up


def scorer(model, in_line=True, dtype=torch.float32):
    return LogprobModel(model, 0.7, chunk_tokens=16, compute_dtype=dtype, in_line=in_line)


def scores_and_gradients(model, batch, mask):
    scores = model(batch.input_ids, batch.prompt_lengths, mask, True)
    weights = torch.arange(scores.logprobs.numel()).view_as(scores.logprobs)
    ((weights * scores.logprobs).sum() + scores.entropies.sum()).backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return scores, gradients


@pytest.mark.parametrize("part", ["all tokens", "some tokens"])
def test_rows_in_line_give_scores_and_gradients_of_padded_rows(causal_lm, part):
    batch = make_batch()
    mask = batch.completion_mask
    if part == "some tokens":
        kept = torch.rand(mask.shape, generator=torch.Generator().manual_seed(1)) < 0.4
        mask = mask * kept
        mask[1] = 0
    ours, our_gradients = scores_and_gradients(scorer(causal_lm), batch, mask)
    padded, gradients = scores_and_gradients(scorer(causal_lm, in_line=False), batch, mask)
    for name in ("logprobs", "entropies", "gradient_norms"):
        torch.testing.assert_close(
            getattr(ours, name), getattr(padded, name), rtol=1e-4, atol=2e-5, msg=name
        )
    for mine, expected in zip(our_gradients, gradients, strict=True):
        assert (mine - expected).abs().max() <= 1e-4 * float(expected.abs().max().clamp(min=1e-3))
    assert 0 < ours.computed < padded.computed == batch.input_ids.numel()


def test_a_line_holds_each_row_up_to_its_last_requested_token():
    line = line_up(torch.tensor([2, 3, 1]), torch.tensor([[1, 1, 0], [0, 0, 1], [0, 0, 0]]))
    assert line.rows.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 2]
    assert line.positions.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0]
    assert line.bounds.tolist() == [0, 3, 8, 9]
    assert line.bounds.dtype == torch.int32
    assert line.longest == 5
    assert line.predicting.tolist() == [1, 2, 7]


def test_the_bounds_that_flash_attention_gets_are_those_of_the_rows(monkeypatch):
    """Attention like flash-attention's varlen function, which sees no mask, only the bounds."""
    calls = []

    def varlen(module, query, key, value, attention_mask, scaling=None, **options):
        assert attention_mask is None
        bounds = options["cu_seq_lens_q"].tolist()
        assert bounds == options["cu_seq_lens_k"].tolist()
        longest = max(stop - start for start, stop in pairwise(bounds))
        assert options["max_length_q"] == options["max_length_k"] == longest
        calls.append(bounds)
        groups = query.shape[1] // key.shape[1]
        key, value = (states.repeat_interleave(groups, dim=1) for states in (key, value))
        rows = [
            functional.scaled_dot_product_attention(
                *(states[:, :, start:stop] for states in (query, key, value)),
                scale=scaling,
                is_causal=True,
            )
            for start, stop in pairwise(bounds)
        ]
        return torch.cat(rows, dim=2).transpose(1, 2).contiguous(), None

    AttentionInterface.register("varlen_of_test", varlen)
    AttentionMaskInterface.register("varlen_of_test", lambda *_, **__: None)
    model = random_model()
    batch = make_batch()
    inputs = (batch.input_ids, batch.prompt_lengths, batch.completion_mask)
    with torch.no_grad():
        padded = scorer(model, in_line=False)(*inputs).logprobs
        model.set_attn_implementation("varlen_of_test")
        ours = scorer(model)(*inputs).logprobs
    torch.testing.assert_close(ours, padded, rtol=1e-4, atol=2e-5)
    assert len(calls) == 2  # layers
    lengths = batch.prompt_lengths + batch.completion_lengths - 1
    assert calls[0] == [0, *lengths.cumsum(dim=0).tolist()]


def test_off_a_cpu_packing_needs_flash_attention():
    model = random_model().to("meta")
    with refused("packing-without-flash", ConfigError, key="model.packing"):
        check_kernel(model)


def test_packing_is_off_by_default_and_replaces_the_rows_of_cpus(random_policy):
    config = apply_overrides(TrainConfig(), {"model.name_or_path": str(random_policy)})
    models = load_models(config, Parallel())
    assert models.layout == models.policy.layout == "shared_prompts"
    models = load_models(apply_overrides(config, {"model.packing": True}), Parallel())
    assert models.layout == models.policy.layout == models.reference.layout == "line"
