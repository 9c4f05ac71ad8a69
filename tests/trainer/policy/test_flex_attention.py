import copy
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import create_block_mask
from transformers import (
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.conftest import random_model
from tests.trainer.grouped_rows import Rows, rows_of
from trainer.config.lora import LoraConfig
from trainer.config.schema import ModelConfig
from trainer.cpu.attention import use_packed_attention
from trainer.errors import ConfigError
from trainer.packing import Packing, pack
from trainer.policy import flex_attention
from trainer.policy.adapters import add_adapter
from trainer.policy.flex_attention import (
    BLOCK,
    block_mask,
    check_kernel,
    dense_mask,
    in_blocks,
    use_flex_attention,
)
from trainer.policy.load import load_policy
from trainer.policy.logprobs import LogprobModel, TokenScores, check_packing

CPU = torch.device("cpu")


def mixed_rows() -> Rows:
    """Prompts of three lengths, one of a single row; a row that nothing is asked of, and one with gaps."""
    ids, prompts, mask = rows_of((70, [150, 3, 90]), (5, [40]), (131, [1, 60]))
    mask[1] = 0
    mask[2, ::2] = 0
    mask[5, 30:] = 0
    return ids, prompts, mask


def scored(model: LogprobModel, rows: Rows) -> tuple[TokenScores, dict[str, torch.Tensor]]:
    """What is said of the rows, and the gradient of every weight of a sum over them."""
    scores = model(*rows, with_entropy=True)
    weights = torch.linspace(-1, 1, scores.logprobs.numel()).view_as(scores.logprobs)
    (scores.logprobs * weights).sum().backward()
    named = model.causal_lm.named_parameters()
    return scores, {name: parameter.grad for name, parameter in named if parameter.grad is not None}


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> bool:
    found, expected = found.detach(), expected.detach()
    return float((found - expected).abs().max()) <= tolerance * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("adapter", [False, True])
def test_numbers_are_those_of_padded_rows_and_of_the_packing_on_cpus(family, checkpointing, adapter) -> None:
    plain = random_model(family)
    by_cpu, by_flex = copy.deepcopy(plain), copy.deepcopy(plain)
    use_packed_attention(by_cpu)
    use_flex_attention(by_flex)
    found = {}
    for name, model in {"padded": plain, "cpu": by_cpu, "flex": by_flex}.items():
        if adapter:
            torch.manual_seed(3)
            add_adapter(model, LoraConfig(r=2))
        if checkpointing:
            model.train()
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        scorer = LogprobModel(model, 0.7, chunk_tokens=64)
        assert scorer.packs_rows is (name != "padded")
        found[name] = scored(scorer, mixed_rows())
    scores, gradients = found["flex"]
    assert len(gradients) > 0
    for other, (expected, others) in found.items():
        assert close(scores.logprobs, expected.logprobs), other
        assert close(scores.entropies, expected.entropies), other
        assert close(scores.gradient_norms, expected.gradient_norms), other
        assert gradients.keys() == others.keys()
        assert all(close(gradients[name], others[name]) for name in gradients), other


def test_bfloat16_is_as_near_to_float32_as_padded_rows_are() -> None:
    plain, packed = random_model(), random_model()
    use_flex_attention(packed)
    expected, expected_gradients = scored(LogprobModel(copy.deepcopy(plain), 0.7, 64), mixed_rows())
    errors = {}
    for name, model in {"padded": plain, "flex": packed}.items():
        scores, gradients = scored(LogprobModel(model, 0.7, 64, torch.bfloat16), mixed_rows())
        flat, other = (torch.cat([g.flatten() for g in of.values()]) for of in (gradients, expected_gradients))
        errors[name] = (
            float((scores.logprobs - expected.logprobs).detach().abs().sum() / mixed_rows()[2].sum()),
            float((flat - other).norm() / other.norm()),
        )
    assert 0 < errors["flex"][0] < min(0.05, 1.25 * errors["padded"][0])
    assert 0 < errors["flex"][1] < min(0.05, 1.25 * errors["padded"][1])


def packing_of(*groups: tuple[int, list[int]]) -> Packing:
    return in_blocks(pack(*rows_of(*groups)))


PACKINGS = [packing_of((3, [2])), packing_of((70, [130, 20, 400]), (300, [1, 200])), packing_of((1, [260, 700]))]


@pytest.mark.parametrize("packing", PACKINGS, ids=["short", "groups", "long"])
def test_a_token_sees_its_row_up_to_itself_in_the_blocks_that_torch_finds(packing) -> None:
    mask = block_mask(packing, CPU)
    dense, starts = dense_mask(mask), {}
    places = torch.arange(len(dense))
    for token, (sequence, prompt) in enumerate(
        zip(packing.sequences.tolist(), packing.prompts.tolist(), strict=True)
    ):
        start = starts.setdefault(sequence, token)
        in_prompt = (packing.sequences == prompt) & (places <= token)
        assert torch.equal(dense[token], in_prompt | ((places >= start) & (places <= token)))
    theirs = create_block_mask(mask.mask_mod, None, None, len(dense), len(dense), "cpu")
    for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"):
        assert torch.equal(getattr(mask, name), getattr(theirs, name)), name


def test_packings_end_in_whole_blocks_whose_last_tokens_see_each_other_alone() -> None:
    ids, prompt_lengths, asked = rows_of((100, [120, 60]))
    packing = pack(ids, prompt_lengths, asked)
    count = 100 + 119 + 59
    assert len(packing.input_ids) == count and len(in_blocks(packing).input_ids) == 3 * BLOCK
    assert len(packing_of((3, [2])).input_ids) == 2 * BLOCK
    dense = dense_mask(block_mask(in_blocks(packing), CPU))
    assert not dense[count:, :count].any() and not dense[:count, count:].any()
    model = random_model()
    use_flex_attention(model)
    assert LogprobModel(model, 1.0, 64)(ids, prompt_lengths, asked).computed == 3 * BLOCK


def unfused(monkeypatch, backend) -> None:
    """Let flex attention run on a CPU with its backward pass, which torch refuses though it has one."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *states: None)
    monkeypatch.setattr(flex_attention, "has_kernel", lambda device: True)
    compiled = torch.compile(torch_flex.flex_attention, dynamic=True, fullgraph=True, backend=backend)
    monkeypatch.setattr(flex_attention, "_compiled", lambda: compiled)


@pytest.mark.parametrize("heads, key_heads", [(4, 4), (14, 2), (3, 1)])
def test_flex_attention_and_its_gradients_are_those_of_the_dense_mask(heads, key_heads, monkeypatch) -> None:
    unfused(monkeypatch, "eager")
    generator = torch.Generator().manual_seed(0)
    mask = block_mask(PACKINGS[1], CPU)
    states = [
        torch.randn(1, count, mask.shape[-1], 16, generator=generator).requires_grad_()
        for count in (heads, key_heads, key_heads)
    ]
    found, expected = (
        flex_attention._with_gradients(attention, states, mask)
        for attention in (flex_attention._flex, flex_attention._dense)
    )
    assert len(found) == 4
    assert all(close(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_model_with_flex_attention_itself_gives_the_numbers_of_padded_rows(checkpointing, monkeypatch) -> None:
    counter = CompileCounter()
    unfused(monkeypatch, counter)
    plain, ours = random_model(), random_model()
    use_flex_attention(ours)
    if checkpointing:
        ours.train()
        ours.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    expected, others = scored(LogprobModel(plain, 0.7, 64), mixed_rows())
    model = LogprobModel(ours, 0.7, 64)
    check_packing(model)
    scores, gradients = scored(model, mixed_rows())
    assert close(scores.logprobs, expected.logprobs)
    assert all(close(gradients[name], others[name]) for name in others)
    assert counter.frame_count == 3  # the kernel's trial, with gradient, without; from the ninth on torch refuses
    low = LogprobModel(ours, 0.7, 64, torch.bfloat16)
    check_packing(low)
    assert (scored(low, mixed_rows())[0].logprobs - expected.logprobs).detach().abs().mean() < 0.01
    assert counter.frame_count == 6


def test_one_kernel_with_gradient_and_one_without_serve_all_lengths(monkeypatch) -> None:
    counter = CompileCounter()
    unfused(monkeypatch, counter)
    for with_gradient in (True, False, True):
        for packing in reversed(PACKINGS):
            mask = block_mask(packing, CPU)
            states = [torch.randn(1, n, mask.shape[-1], 16, requires_grad=with_gradient) for n in (4, 2, 2)]
            with torch.set_grad_enabled(with_gradient):
                flex_attention._flex(*states, mask, None)
    assert counter.frame_count == 2


def test_a_kernel_that_is_wrong_is_found(monkeypatch) -> None:
    unfused(monkeypatch, "eager")
    model = random_model()
    check_kernel(model, torch.float32)
    check_kernel(model, torch.bfloat16)
    monkeypatch.setattr(
        flex_attention, "_flex", lambda q, k, v, mask, scale: flex_attention._dense(q, k, v, mask, 1.0)
    )
    with pytest.raises(ConfigError, match=r"flex attention is wrong by .* 4 heads of 8") as caught:
        check_kernel(model, torch.float32)
    assert caught.value.where == "model.packing"


SHAPE = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def checked(model) -> None:
    use_flex_attention(model)
    check_packing(LogprobModel(model, 1.0, 64))


@pytest.mark.parametrize("compute_dtype", [torch.float32, torch.bfloat16])
def test_models_that_take_packed_rows_pass(causal_lm, compute_dtype) -> None:
    use_flex_attention(causal_lm)
    check_packing(LogprobModel(causal_lm, 1.0, 64, compute_dtype))
    checked(Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)))


def test_sliding_windows_are_refused() -> None:
    some = Qwen2ForCausalLM(Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=8, max_window_layers=1))
    with pytest.raises(ConfigError, match="Qwen2ForCausalLM has layers of sliding_attention"):
        use_flex_attention(some)
    everywhere = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=8))
    with pytest.raises(ConfigError, match="sliding_"):
        checked(everywhere)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("left_out", ["attention_mask", "position_ids"])
def test_models_that_do_not_hand_on_mask_or_positions_are_refused(left_out, dtype) -> None:
    model = random_model()
    forward = model.model.forward
    model.model.forward = lambda **options: forward(
        **{name: of for name, of in options.items() if name != left_out}
    )
    use_flex_attention(model)
    with pytest.raises(ConfigError, match="hidden states of Qwen2ForCausalLM would differ") as caught:
        check_packing(LogprobModel(model, 1.0, 64, dtype))
    assert caught.value.hint == "set model.packing=none for padded rows"


def test_models_whose_layers_do_not_know_such_a_mask_are_refused() -> None:
    model = random_model()
    use_flex_attention(model)
    for layer in model.model.layers:
        layer.self_attn.config = SimpleNamespace(_attn_implementation="eager")
    with pytest.raises(ConfigError, match="Qwen2ForCausalLM does not take them"):
        check_packing(LogprobModel(model, 1.0, 64))


def test_padded_rows_decoding_and_checkpoints_know_nothing_of_it(tmp_path) -> None:
    plain, ours = random_model(), random_model()
    use_flex_attention(ours)
    ids = torch.randint(3, 61, (2, 12), generator=torch.Generator().manual_seed(1))
    padded = torch.ones_like(ids)
    padded[0, :5] = 0
    options = {"max_new_tokens": 8, "do_sample": False, "attention_mask": padded}
    assert torch.equal(ours.generate(ids, **options), plain.generate(ids, **options))
    ours.save_pretrained(tmp_path)
    assert flex_attention.NAME not in (tmp_path / "config.json").read_text()


def test_the_option_decides_whether_rows_are_packed(tmp_path) -> None:
    random_model().save_pretrained(tmp_path)
    for packing, kernel in {"auto": "sdpa_or_packed", "none": "sdpa", "flex_attention": "sdpa_or_flex"}.items():
        model = load_policy(ModelConfig(name_or_path=str(tmp_path), packing=packing), CPU)
        assert model.config._attn_implementation == kernel
        assert LogprobModel(model, 1.0, 64).packs_rows is (packing != "none")
    with pytest.raises(ValueError, match="leave attn_implementation at sdpa"):
        ModelConfig(packing="flex_attention", attn_implementation="eager")
