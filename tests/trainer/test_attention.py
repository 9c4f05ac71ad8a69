import copy
import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from trainer import attention
from trainer.attention import BLOCK, LONGEST, causal_attention, use_batched_attention


def states(batch: int, heads: int, key_heads: int, length: int, size: int) -> list[torch.Tensor]:
    """Query, key, value as a model has them, heads after positions in memory, and the output's gradient."""
    generator = torch.Generator().manual_seed(0)
    of_heads = [
        torch.randn(batch, length, count, size, generator=generator).transpose(1, 2)
        for count in (heads, key_heads, key_heads)
    ]
    return [*of_heads, torch.randn(batch, length, heads, size, generator=generator)]


def reference(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """The definition, one position after the other."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    outputs = []
    for t in range(query.shape[2]):
        scores = scale * (query[:, :, t, None] * key[:, :, : t + 1]).sum(dim=-1)
        outputs.append((scores.softmax(dim=-1)[..., None] * value[:, :, : t + 1]).sum(dim=2))
    return torch.stack(outputs, dim=1)


def results(function, inputs: list[torch.Tensor], grad_output: torch.Tensor) -> list[torch.Tensor]:
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    output = function(*leaves, 0.3)
    output.backward(grad_output)
    return [output.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("heads, key_heads", [(6, 2), (4, 4), (3, 1)])
@pytest.mark.parametrize("length", [2, BLOCK, BLOCK + 1, 2 * BLOCK + 7])
def test_output_and_gradients_are_those_of_float64(heads: int, key_heads: int, length: int) -> None:
    *inputs, grad_output = states(3, heads, key_heads, length, 8)
    expected = results(reference, [tensor.double() for tensor in inputs], grad_output.double())
    for ours, theirs in zip(results(causal_attention, inputs, grad_output), expected, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


def model_of(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    shape = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": LONGEST + 8}
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**shape))
    return Qwen2ForCausalLM(Qwen2Config(**shape))


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_a_model_gives_what_it_gave_before(kind: str) -> None:
    plain = model_of(kind)
    ours = copy.deepcopy(plain)
    use_batched_attention(ours)
    ids = torch.randint(50, (3, 90), generator=torch.Generator().manual_seed(1))
    logits = [model(input_ids=ids).logits for model in (plain, ours)]
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-5)
    for output in logits:
        output.square().sum().backward()
    for (name, mine), theirs in zip(ours.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3, msg=name)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sequence lengths for which the batched products were used."""
    lengths: list[int] = []

    def recorded(query, *rest):
        lengths.append(query.shape[2])
        return causal_attention(query, *rest)

    monkeypatch.setattr(attention, "causal_attention", recorded)
    return lengths


def test_padding_and_long_sequences_are_left_to_torch(calls: list[int]) -> None:
    plain = model_of("qwen2")
    ours = copy.deepcopy(plain)
    use_batched_attention(ours)
    ids = torch.randint(50, (2, 12), generator=torch.Generator().manual_seed(1))
    padded = torch.ones_like(ids)
    padded[0, :5] = 0
    with torch.no_grad():
        left = [model(input_ids=ids, attention_mask=padded).logits[padded.bool()] for model in (plain, ours)]
        assert torch.equal(left[1], left[0])
        long = torch.zeros(1, LONGEST + 1, dtype=torch.long)
        assert torch.equal(ours(input_ids=long).logits, plain(input_ids=long).logits)
        assert calls == []
        ours(input_ids=ids)
        assert calls == [12, 12]  # two layers


def test_decoding_with_a_cache_is_that_of_torch(calls: list[int]) -> None:
    plain = model_of("llama").eval()
    ours = copy.deepcopy(plain)
    use_batched_attention(ours)
    ids = torch.randint(50, (2, 12), generator=torch.Generator().manual_seed(1))
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    assert torch.equal(ours.generate(ids, **options), plain.generate(ids, **options))
    assert calls == [12, 12]


def test_bfloat16_is_left_to_torch(calls: list[int]) -> None:
    ours = model_of("qwen2")
    use_batched_attention(ours)
    ids = torch.arange(10)[None]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        ours(input_ids=ids)
    assert calls == []


def test_other_attention_stays_and_checkpoints_do_not_know(tmp_path: Path) -> None:
    eager = model_of("qwen2")
    eager.set_attn_implementation("eager")
    use_batched_attention(eager)
    assert eager.config._attn_implementation == "eager"
    ours = model_of("qwen2")
    use_batched_attention(ours)
    ours.save_pretrained(tmp_path)
    assert attention.NAME not in (tmp_path / "config.json").read_text()
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "qwen2"
