import pytest
import torch

from trainer.policy.logprobs import tokens_per_chunk
from trainer.policy.scoring_head import ScoringHead

TOKENS = 4096
WIDTH = 16
VOCABULARY = 40


def weight_gradient(chunk_tokens):
    """Of the sum of log-probabilities, by an output embedding in bfloat16."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=torch.bfloat16)
    # all contributions of one sign: rounding adds up
    hidden = (torch.randn(TOKENS, WIDTH) + 1).bfloat16()
    targets = torch.zeros(TOKENS, dtype=torch.int64)
    logprobs, *_ = ScoringHead(layer, 0.7, chunk_tokens)(hidden, targets, False)
    logprobs.sum().backward()
    assert layer.weight.grad.dtype == torch.bfloat16
    return layer.weight.grad.float()


def test_the_gradient_of_many_chunks_is_rounded_once():
    whole = weight_gradient(TOKENS)
    many = weight_gradient(8)
    rounding = 2.0**-8 * whole.abs().max()
    assert (whole - many).abs().max() <= rounding


def test_autocast_keeps_gradients_in_the_weights_dtype():
    torch.manual_seed(0)
    layer = torch.nn.Linear(WIDTH, VOCABULARY)
    hidden = torch.randn(50, WIDTH, requires_grad=True)
    targets = torch.arange(50) % VOCABULARY
    scores = {}
    for dtype in (torch.float32, torch.bfloat16):
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            logprobs, entropies, norms, _ = ScoringHead(layer, 1.3, 7)(hidden, targets, True)
        assert entropies.requires_grad and not norms.requires_grad
        logprobs.sum().backward()
        scores[dtype] = (logprobs.detach(), layer.weight.grad.clone(), layer.bias.grad.clone())
    rounded = layer.weight.bfloat16().float(), layer.bias.bfloat16().float()
    logits = (
        torch.nn.functional.linear(hidden.bfloat16().float(), *rounded).bfloat16().float() / 1.3
    )
    expected = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    assert torch.allclose(scores[torch.bfloat16][0], expected, atol=1e-5)
    for low, full in zip(scores[torch.bfloat16], scores[torch.float32], strict=True):
        assert low.dtype == torch.float32
        assert (low - full).abs().max() < 0.02 * full.abs().max()


@pytest.mark.parametrize(
    ("vocabulary", "on_gpu", "tokens"),
    [(151936, False, 220), (151936, True, 1766), (10**9, False, 1)],
)
def test_tokens_of_a_chunk(vocabulary, on_gpu, tokens):
    assert tokens_per_chunk(vocabulary, on_gpu) == tokens
