import copy
import json

import pytest
import torch
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from tests.trainer.grouped_rows import rows_of
from trainer.cpu import packed_rows
from trainer.cpu.packed_rows import (
    BLOCK,
    MAX_STORED_LENGTH,
    pack,
    packed_attention,
    takes_packed_rows,
    use_packed_attention,
)
from trainer.policy.logprobs import LogprobModel


def packing_of(prompts, completions):
    """Rows of given prompt lengths, one list of completion lengths per prompt."""
    return pack(*rows_of(*zip(prompts, completions, strict=True)))


def reference(query, key, value, scale, packing):
    """The definition, one token after the other."""
    group = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(group, dim=1)
    value = value.repeat_interleave(group, dim=1)
    outputs = [torch.empty(0)] * len(query)
    for segment in packing.segments:
        numbers = torch.arange(len(query))
        for token in numbers[segment.tokens].tolist():
            first = (
                token
                - int(packing.position_ids[token])
                + segment.prefix.stop
                - segment.prefix.start
            )
            past = torch.cat([numbers[segment.prefix], numbers[first : token + 1]])
            scores = scale * (query[token] * key[past]).sum(dim=-1)
            outputs[token] = (scores.softmax(dim=0)[..., None] * value[past]).sum(dim=0)
    return torch.stack(outputs)


def results(inputs, grad_output, function, packing):
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    output = function(*leaves, 0.3, packing)
    output.backward(grad_output)
    return [output.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("heads, key_heads", [(6, 2), (4, 4), (3, 1)])
@pytest.mark.parametrize(
    "prompts, completions",
    [
        ([1], [[2]]),
        ([5, 3], [[4, 9, 1], [7]]),
        ([4, 4], [[6, 6], [6, 6]]),
        ([BLOCK + 3, 2], [[2 * BLOCK + 7, 5], [BLOCK + 1, BLOCK]]),
    ],
)
def test_output_and_gradients_are_those_of_float64(
    heads, key_heads, prompts, completions, monkeypatch
):
    packing = packing_of(prompts, completions)
    generator = torch.Generator().manual_seed(0)
    shapes = [(heads, 8), (key_heads, 8), (key_heads, 8), (heads, 8)]
    *inputs, grad_output = [
        torch.randn(len(packing.input_ids), *shape, generator=generator) for shape in shapes
    ]
    expected = results(
        [tensor.double() for tensor in inputs], grad_output.double(), reference, packing
    )
    ours = results(inputs, grad_output, packed_attention, packing)
    for mine, theirs in zip(ours, expected, strict=True):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)
    # weights that were not kept are the same
    monkeypatch.setattr(packed_rows, "MAX_STORED_LENGTH", 1)
    for mine, again in zip(
        ours, results(inputs, grad_output, packed_attention, packing), strict=True
    ):
        assert torch.equal(mine, again)


SHAPE = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_STORED_LENGTH + 8,
}


def model_of(kind):
    torch.manual_seed(0)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**SHAPE))
    if kind == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8))
    if kind == "mistral":
        return MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=None))
    if kind == "gemma":
        return GemmaForCausalLM(GemmaConfig(**SHAPE, head_dim=8))
    if kind == "smollm3":
        return SmolLM3ForCausalLM(SmolLM3Config(**SHAPE, pad_token_id=0))
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE))


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3", "mistral", "gemma", "smollm3"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_log_probabilities_and_gradients_are_those_of_padded_rows(kind, checkpointing):
    original = model_of(kind)
    ours = copy.deepcopy(original)
    use_packed_attention(ours)
    assert takes_packed_rows(ours)
    if checkpointing:
        ours.train()
        ours.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    rows = rows_of((7, [90, 4, 1]), (7, [33, 70, 2]), vocabulary=SHAPE["vocab_size"])
    scores = [
        LogprobModel(model, 0.7, chunk_tokens=64)(*rows, with_entropy=True)
        for model in (original, ours)
    ]
    for quantity in ("logprobs", "entropies", "gradient_norms"):
        theirs, mine = (getattr(score, quantity) for score in scores)
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert scores[1].computed < scores[0].computed == rows[0].numel()
    for score in scores:
        score.logprobs.square().sum().backward()
    for (name, mine), theirs in zip(ours.named_parameters(), original.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3, msg=name)


def test_sliding_windows_and_other_attention_take_padded_rows():
    sliding = Qwen2ForCausalLM(
        Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    )
    window_everywhere = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=8))
    convolution = Lfm2ForCausalLM(
        Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"], pad_token_id=0)
    )
    eager = model_of("llama")
    eager.set_attn_implementation("eager")
    for model in (sliding, window_everywhere, convolution, eager):
        before = model.config._attn_implementation
        use_packed_attention(model)
        assert not takes_packed_rows(model)
        assert model.config._attn_implementation == before


def without_packing(forward):
    return lambda *args, packing=None, **options: forward(*args, **options)


def with_other_shapes(forward):
    return lambda hidden, *args, **options: forward(hidden.expand(2, -1, -1), *args, **options)


def without_positions(forward):
    return lambda *args, position_ids=None, **options: forward(*args, **options)


def strict(forward):
    return lambda input_ids, attention_mask=None, position_ids=None, use_cache=None: forward(
        input_ids=input_ids, use_cache=use_cache
    )


@pytest.mark.parametrize("changed", [without_packing, with_other_shapes, without_positions, strict])
def test_a_model_that_loses_the_packing_keeps_padded_rows(changed):
    model = model_of("llama")
    changes_model = changed in (strict, without_positions)
    modules = [model.model] if changes_model else [layer.self_attn for layer in model.model.layers]
    for module in modules:
        module.forward = changed(module.forward)
    use_packed_attention(model)
    assert model.config._attn_implementation == "sdpa"
    assert not takes_packed_rows(model)


def test_padded_rows_and_decoding_with_a_cache_are_those_of_torch():
    original = model_of("llama").eval()
    ours = copy.deepcopy(original)
    use_packed_attention(ours)
    ids = torch.randint(50, (2, 12), generator=torch.Generator().manual_seed(1))
    padded = torch.ones_like(ids)
    padded[0, :5] = 0
    with torch.no_grad():
        for mask in (None, padded):
            assert torch.equal(
                ours(input_ids=ids, attention_mask=mask).logits[padded.bool()],
                original(input_ids=ids, attention_mask=mask).logits[padded.bool()],
            )
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "attention_mask": padded}
    assert torch.equal(ours.generate(ids, **options), original.generate(ids, **options))


def test_bfloat16_takes_padded_rows():
    ours = model_of("qwen2")
    use_packed_attention(ours)
    model = LogprobModel(ours, 1.0, chunk_tokens=64, compute_dtype=torch.bfloat16)
    assert model.layout == "padded"


def test_checkpoints_do_not_know(tmp_path):
    ours = model_of("qwen2")
    use_packed_attention(ours)
    ours.save_pretrained(tmp_path)
    assert packed_rows.NAME not in (tmp_path / "config.json").read_text()
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "qwen2"


def test_prompts_come_once_and_completions_without_their_last_token():
    packing = pack(
        torch.tensor(
            [[1, 2, 10, 11, 12, 0], [1, 2, 20, 0, 0, 0], [1, 2, 30, 31, 0, 0], [3, 4, 5, 40, 41, 0]]
        ),
        prompt_lengths=torch.tensor([2, 2, 2, 3]),
        completion_mask=torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 0]]),
    )
    assert packing.input_ids.tolist() == [1, 2, 3, 4, 5, 10, 11, 30, 40]
    assert packing.position_ids.tolist() == [0, 1, 0, 1, 2, 2, 3, 2, 3]
    assert packing.predicting.tolist() == [1, 5, 6, 1, 1, 7, 4, 8]
    assert [(segment.tokens, segment.prefix) for segment in packing.segments] == [
        (slice(0, 5), slice(0, 0)),
        (slice(5, 8), slice(0, 2)),
        (slice(8, 9), slice(2, 5)),
    ]


def test_a_prompt_that_begins_like_the_one_before_is_another():
    packing = pack(
        torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 5]]),
        prompt_lengths=torch.tensor([2, 3, 3]),
        completion_mask=torch.tensor([[1, 1], [1, 0], [1, 0]]),
    )
    assert packing.input_ids.tolist() == [1, 2, 1, 2, 3, 3]
    assert packing.predicting.tolist() == [1, 5, 4, 4]


def test_rows_with_at_most_one_token_need_only_their_prompt():
    packing = pack(
        torch.tensor([[7, 8, 1], [7, 8, 2]]),
        prompt_lengths=torch.tensor([2, 2]),
        completion_mask=torch.tensor([[1.0], [0.0]]),
    )
    assert packing.input_ids.tolist() == [7, 8]
    assert packing.predicting.tolist() == [1]
    assert len(packing.segments) == 1


def test_completions_are_seen_up_to_the_last_token_that_is_asked_for():
    packing = pack(
        torch.tensor([[7, 8, 1, 2, 3], [7, 8, 4, 5, 6]]),
        prompt_lengths=torch.tensor([2, 2]),
        completion_mask=torch.tensor([[0, 0, 1], [0, 1, 0]]),
    )
    assert packing.input_ids.tolist() == [7, 8, 1, 2, 4]
    assert packing.predicting.tolist() == [3, 4]
