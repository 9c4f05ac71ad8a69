import pytest
import torch

from tests.rounding import forward_terms, sum_tolerance
from tests.trainer.algorithm.batches import make_batch
from trainer.policy.logprobs import LogprobModel
from trainer.rules.losses.clipped import Clipped
from trainer.rules.papers import lp_reg


def expected_scores(causal_lm, batch, temperature):
    """Logprobs and entropies in float64 by a full forward per row, without padding."""
    double = causal_lm.double()
    logprobs = torch.zeros(batch.completion_mask.shape, dtype=torch.float64)
    entropies = torch.zeros_like(logprobs)
    for row in range(len(batch.rewards)):
        prompt = int(batch.prompt_lengths[row])
        count = int(batch.completion_lengths[row])
        ids = batch.input_ids[row : row + 1, : prompt + count]
        table = torch.log_softmax(double(ids).logits[0] / temperature, dim=-1)
        for t in range(count):
            distribution = table[prompt + t - 1]
            logprobs[row, t] = distribution[ids[0, prompt + t]]
            entropies[row, t] = -(distribution.exp() * distribution).sum()
    return logprobs, entropies


@pytest.mark.parametrize("chunk_tokens", [1000, 7])
def test_agrees_with_a_float64_forward_without_padding(causal_lm, chunk_tokens):
    batch = make_batch()
    with torch.no_grad():
        scores = LogprobModel(causal_lm, 0.7, chunk_tokens)(
            batch.input_ids, batch.prompt_lengths, batch.completion_mask, with_entropy=True
        )
        logprobs, entropies = expected_scores(causal_lm, batch, 0.7)
    rounding = sum_tolerance(forward_terms(causal_lm.config, 23), float(logprobs.abs().max()))
    assert (scores.logprobs - logprobs).abs().max() < rounding < 1e-3
    assert (scores.entropies - entropies).abs().max() < rounding


def test_logits_exist_for_one_chunk_at_a_time(causal_lm, monkeypatch):
    seen = []
    linear = torch.nn.functional.linear

    def recording(hidden, weight, bias=None):
        output = linear(hidden, weight, bias)
        if output.shape[-1] == causal_lm.config.vocab_size:
            seen.append(output.shape)
        return output

    monkeypatch.setattr(torch.nn.functional, "linear", recording)
    batch = make_batch()
    with torch.no_grad():
        LogprobModel(causal_lm, 1.0, 10)(
            batch.input_ids, batch.prompt_lengths, batch.completion_mask
        )
    assert sum(shape[0] for shape in seen) == int(batch.completion_mask.sum())
    assert max(shape[0] for shape in seen) == 10


def test_gradients_through_recomputed_chunks_are_those_of_the_full_logits(causal_lm):
    batch = make_batch()
    scores = LogprobModel(causal_lm, 1.3, chunk_tokens=5)(
        batch.input_ids, batch.prompt_lengths, batch.completion_mask, with_entropy=True
    )
    weights = torch.arange(scores.logprobs.numel()).view_as(scores.logprobs)
    (scores.entropies.sum() + (weights * scores.logprobs).sum()).backward()
    ours = [p.grad.clone() for p in causal_lm.parameters()]
    causal_lm.zero_grad()

    table = torch.log_softmax(causal_lm(batch.input_ids).logits / 1.3, dim=-1)
    rows, columns = batch.completion_mask.nonzero(as_tuple=True)
    positions = batch.prompt_lengths[rows] + columns
    picked = table[rows, positions - 1]
    logprobs = picked.gather(-1, batch.input_ids[rows, positions, None])
    ((weights[rows, columns, None] * logprobs).sum() - (picked.exp() * picked).sum()).backward()
    for mine, parameter in zip(ours, causal_lm.parameters(), strict=True):
        scale = parameter.grad.abs().max().clamp(min=1e-6)
        assert ((mine - parameter.grad).abs().max() / scale) < 1e-4


def test_token_statistics_of_lp_reg_are_log_probabilities_of_its_proxy(causal_lm, monkeypatch):
    batch = make_batch()
    inputs = (batch.input_ids, batch.prompt_lengths, batch.completion_mask, True)
    with torch.no_grad():
        probabilities = torch.softmax(causal_lm(batch.input_ids).logits, dim=-1)
        rows, columns = batch.completion_mask.nonzero(as_tuple=True)
        positions = batch.prompt_lengths[rows] + columns
        probabilities = probabilities[rows, positions - 1]
        fractions = probabilities / probabilities.amax(dim=-1, keepdim=True)
        fraction = fractions.gather(-1, batch.input_ids[rows, positions, None])
        min_p = float(fraction.median())
        kept = torch.where(fractions >= min_p, probabilities, 0.0)
        expected = (kept / kept.sum(dim=-1, keepdim=True)).gather(
            -1, batch.input_ids[rows, positions, None]
        )[:, 0]
        monkeypatch.setattr(lp_reg, "_PROXY_MIN_P", min_p)
        model = LogprobModel(causal_lm, 1.0, 5, token_statistic=lp_reg.LpReg().token_statistic)
        logprobs = model(*inputs).token_statistics[rows, columns]
        # not the median itself, whose side rounding decides
        clear = (fraction[:, 0] - min_p).abs() > 1e-4 * min_p
    assert 0 < int(logprobs[clear].isinf().sum()) < int(clear.sum())
    torch.testing.assert_close(logprobs.exp()[clear], expected[clear], rtol=1e-4, atol=0)


def test_a_loss_without_a_token_statistic_has_none(causal_lm):
    batch = make_batch()
    model = LogprobModel(causal_lm, 1.0, 5, token_statistic=Clipped().token_statistic)
    scores = model(batch.input_ids, batch.prompt_lengths, batch.completion_mask, True)
    assert scores.token_statistics is None
    assert scores.entropies is not None
