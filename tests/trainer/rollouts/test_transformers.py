import math
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from tests.rounding import forward_terms, sum_tolerance
from tests.tables import table
from trainer.cpu import linear as onednn
from trainer.cpu.linear import use_onednn
from trainer.policy.logprobs import LogprobModel
from trainer.rollouts.decoding import SharedPrefixBatch, fastest_batch
from trainer.rollouts.engine import SamplingParams
from trainer.rollouts.transformers import (
    TransformersEngine,
    bytes_per_position,
    row_uniforms,
    sample_tokens,
    truncation_processors,
)

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [5] * 17]
SEEDS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "initializer_range": 0.1,
}
PARAMS = SamplingParams(temperature=0.7, max_new_tokens=30, stop_token_ids=(3, 4))
FAMILIES = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen2_tied": (
        Qwen2ForCausalLM,
        Qwen2Config,
        {"tie_word_embeddings": True, "num_key_value_heads": 4},
    ),
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "sliding_window": (
        Qwen2ForCausalLM,
        Qwen2Config,
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "mistral": (MistralForCausalLM, MistralConfig, {}),
    "eager": (LlamaForCausalLM, LlamaConfig, {"attn_implementation": "eager"}),
}
UNSHARED = ("sliding_window", "mistral")


def make_model(family="qwen2"):
    model_class, config_class, options = FAMILIES[family]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_class(config_class(**{**SIZES, **options}))
        for parameter in model.parameters():  # biases start at 0, which would hide a forgotten one
            parameter.data += 0.02 * torch.randn_like(parameter)
    return model


def sample(model, params=PARAMS, budget=10_000, batch_class=None):
    engine = TransformersEngine(model, pad_token_id=0)
    engine._batch_class = batch_class
    engine.token_budget = lambda row_length: budget
    return engine.generate(PROMPTS, SEEDS, params)


def teacher_forced(model, prompt, tokens):
    """Logits of every token of a completion, from one pass over the unpadded sequence: [T, V]."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *tokens]]), use_cache=False).logits
    return logits[0, len(prompt) - 1 : -1]


def rounding(model):
    """Largest difference of two log-probabilities; logits of these models are below 10."""
    return sum_tolerance(forward_terms(model.config, 40), scale=10)


@pytest.mark.parametrize("in_onednn", [False, True])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_a_double_precision_pass(monkeypatch, family, temperature, in_onednn):
    model = make_model(family)
    if in_onednn:
        monkeypatch.setattr(onednn, "is_faster_in_onednn", torch.backends.mkldnn.is_available)
        monkeypatch.setattr(onednn, "MIN_PRODUCT", 1)
        use_onednn(model)
    assert (fastest_batch(model, 0) is SharedPrefixBatch) == (family not in UNSHARED)
    groups = sample(model, SamplingParams(temperature, max_new_tokens=30, stop_token_ids=(3, 4)))
    model.double()
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for completion in group:
            logprobs = torch.log_softmax(
                teacher_forced(model, prompt, completion.token_ids) / temperature, dim=-1
            )
            chosen = logprobs.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            error = chosen - torch.tensor(completion.rollout_logprobs, dtype=torch.float64)
            assert error.abs().max() <= rounding(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_does_not_depend_on_how_it_is_split(family):
    model = make_model(family)
    whole = sample(model)
    engine = TransformersEngine(model, pad_token_id=7)
    for budget in (1, 100):
        split = sample(model, budget=budget)
        assert [[c.token_ids for c in group] for group in split] == [
            [c.token_ids for c in group] for group in whole
        ]
    for p in (0, 2):
        alone = engine.generate([PROMPTS[p]], [SEEDS[p][1:2]], PARAMS)
        assert alone[0][0].token_ids == whole[p][1].token_ids
        assert alone[0][0].rollout_logprobs == pytest.approx(
            whole[p][1].rollout_logprobs, abs=rounding(model)
        )


def test_completions_end_at_their_first_stop_token_or_the_limit():
    completions = [completion for group in sample(make_model()) for completion in group]
    assert {completion.finish_reason for completion in completions} == {"stop", "length"}
    for completion in completions:
        stops = [token in PARAMS.stop_token_ids for token in completion.token_ids]
        assert len(completion.rollout_logprobs) == len(stops) <= 30
        assert not any(stops[:-1])
        assert completion.finish_reason == ("stop" if stops[-1] else "length")
        assert stops[-1] or len(stops) == 30


def test_greedy_follows_the_largest_logit_at_temperature_one():
    model = make_model()
    groups = sample(model, SamplingParams(temperature=0.0, max_new_tokens=12))
    model.double()
    for prompt, group in zip(PROMPTS, groups, strict=True):
        assert len({completion.token_ids for completion in group}) == 1
        logits = teacher_forced(model, prompt, group[0].token_ids)
        assert logits.argmax(dim=-1).tolist() == list(group[0].token_ids)
        expected = torch.log_softmax(logits, dim=-1).amax(dim=-1)
        assert group[0].rollout_logprobs == pytest.approx(expected.tolist(), abs=rounding(model))


def watch(model):
    """From now on, the shapes of the model's own inputs, and the number of rows each time logits
    are made.
    """
    shapes = []
    rows = []
    model.register_forward_pre_hook(
        lambda _, __, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    model.lm_head.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    return shapes, rows


def test_prompts_are_read_once_and_finished_rows_leave_the_batch():
    model = make_model()
    shapes, rows = watch(model)
    groups = sample(model, batch_class=SharedPrefixBatch)
    completions = [completion for group in groups for completion in group]
    assert (shapes[0], rows.pop(0)) == ((3, 17), 3)
    alive = [
        sum(len(c.token_ids) > position for c in completions)
        for position in range(1, len(rows) + 1)
    ]
    assert alive[-1] > 0 and alive[-1] < alive[0] == 9
    assert all(
        left == all_rows or left > 7 / 8 * all_rows
        for left, all_rows in zip(alive, rows, strict=True)
    )


def test_sub_batches_keep_the_token_budget():
    model = make_model()
    shapes, rows = watch(model)
    params = SamplingParams(1.0, max_new_tokens=10)
    sample(model, params, budget=60, batch_class=SharedPrefixBatch)
    # 13, 17 and 27 tokens a row: 3 x 13, 2 x 17, 2 x 27 fit; 4 x 17 and 3 x 27 do not
    assert [shape for shape in shapes if shape[1] > 1] == [(1, 3), (1, 7), (1, 17), (1, 17)]
    assert max(rows) == 3


def test_modes_and_global_random_state_are_left_as_they_were():
    model = make_model()
    model.train()
    model.model.layers[1].eval()
    before = [module.training for module in model.modules()]
    random_state = torch.get_rng_state()
    sample(model)
    assert [module.training for module in model.modules()] == before
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(
        parameter.grad is None and parameter.requires_grad for parameter in model.parameters()
    )
    loss = model(input_ids=torch.tensor([PROMPTS[0]]), labels=torch.tensor([PROMPTS[0]])).loss
    loss.backward()
    assert all(p.grad is not None and not p.is_inference() for p in model.parameters())
    assert not any(buffer.is_inference() for buffer in model.buffers())


def test_dropout_is_off_while_sampling():
    model = make_model("llama")
    expected = sample(model)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model.train()
    assert sample(model) == expected


def test_nothing_is_sampled_where_nothing_is_asked():
    engine = TransformersEngine(make_model(), pad_token_id=0)
    assert engine.generate([], [], PARAMS) == []
    assert engine.generate([[1], [2]], [[], [5]], PARAMS)[0] == []


def test_a_float32_policy_with_bfloat16_compute_samples_in_bfloat16():
    model = make_model()
    params = SamplingParams(0.7, max_new_tokens=6)
    seen = set()
    for layer in model.model.layers:
        layer.mlp.down_proj.register_forward_hook(
            lambda module, inputs, output: seen.add(output.dtype)
        )
    engine = TransformersEngine(model, pad_token_id=0, compute_dtype=torch.bfloat16)
    samples = engine.generate(PROMPTS, SEEDS, params)
    assert seen == {torch.bfloat16}
    sample = samples[0][0]
    prompt = PROMPTS[0]
    ids = torch.tensor([[*prompt, *sample.token_ids]])
    mask = torch.ones(1, len(sample.token_ids))
    with torch.no_grad():
        scores = LogprobModel(model, 0.7, 100, torch.bfloat16)(
            ids, torch.tensor([len(prompt)]), mask
        )
    assert (scores.logprobs[0] - torch.tensor(sample.rollout_logprobs)).abs().mean() < 0.05


def test_the_batch_takes_the_free_memory_of_a_gpu(monkeypatch):
    # Qwen2.5-3B in bfloat16: 36 layers of 2 key heads of 128, 151,936 tokens.
    config = Qwen2Config(
        num_hidden_layers=36,
        hidden_size=2048,
        num_attention_heads=16,
        num_key_value_heads=2,
        vocab_size=151936,
    )
    each = bytes_per_position(config, torch.bfloat16, 4496)
    assert each == 36 * 2 * 2 * 128 * 2 + 151936 * 32 / 4496
    assert bytes_per_position(config, torch.float32, 4496) == each + 36 * 2 * 2 * 128 * 2
    model = SimpleNamespace(config=config, device=torch.device("cuda"), dtype=torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40 * 10**9, 80 * 10**9))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    engine = TransformersEngine(model, pad_token_id=0)
    assert engine.token_budget(4496) == int(0.8 * 40e9 / each)
    assert TransformersEngine(make_model(), pad_token_id=0).token_budget(4496) == 131072


PROBABILITIES = [0.4, 0.1, 0.3, 0.2]
LOGITS = torch.log(torch.tensor([PROBABILITIES]))
# of the largest logarithm, and of exp, log, / and -
ROUNDING = sum_tolerance(len(PROBABILITIES) + 4, scale=4.6)


def draw(uniform, **options):
    params = SamplingParams(**{"temperature": 1.0, **options})
    tokens, logprobs = sample_tokens(LOGITS, torch.tensor([uniform], dtype=torch.float64), params)
    return int(tokens), math.exp(float(logprobs))


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.39, 0), (0.41, 1), (0.51, 2), (0.79, 2), (0.81, 3)]
)
def test_uniforms_are_mapped_through_the_cumulative_distribution(uniform, token):
    assert draw(uniform) == (token, pytest.approx(PROBABILITIES[token], rel=ROUNDING))


def test_temperature_sharpens_the_distribution():
    # squares .16 .01 .09 .04 of sum .30: cumulative .5333 .5667 .8667 1
    assert draw(0.53, temperature=0.5) == (0, pytest.approx(0.16 / 0.30, rel=ROUNDING))
    assert draw(0.55, temperature=0.5) == (1, pytest.approx(0.01 / 0.30, rel=ROUNDING))


@pytest.mark.parametrize(("options", "kept"), table("kept_tokens"))
def test_kept_tokens(options, kept):
    left = truncation_processors(SamplingParams(1.0, **options))(None, LOGITS)
    assert left.isfinite().tolist() == [kept]
    assert torch.equal(left[left.isfinite()], LOGITS[left.isfinite()])


def test_probabilities_are_renormalized_over_the_kept_tokens():
    assert draw(0.56, top_k=2) == (0, pytest.approx(0.4 / 0.7, rel=ROUNDING))
    assert draw(0.58, top_k=2) == (2, pytest.approx(0.3 / 0.7, rel=ROUNDING))


def test_impossible_tokens_are_never_drawn():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf]])
    for uniform in (0.0, 1 - 2**-53):
        tokens, logprobs = sample_tokens(
            logits, torch.tensor([uniform], dtype=torch.float64), SamplingParams(temperature=1.0)
        )
        assert (int(tokens), float(logprobs)) == (1, 0.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("row", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf]])
def test_broken_logits_show_in_the_logprob(row, temperature):
    uniforms = torch.tensor([0.5], dtype=torch.float64)
    _, logprobs = sample_tokens(torch.tensor([row]), uniforms, SamplingParams(temperature))
    assert math.isnan(float(logprobs))


def test_half_precision_logits_are_normalized_in_single():
    logits = torch.zeros(1, 1000, dtype=torch.bfloat16)
    _, logprobs = sample_tokens(
        logits, torch.tensor([0.5], dtype=torch.float64), SamplingParams(1.0)
    )
    assert logprobs.dtype == torch.float32
    assert float(logprobs) == pytest.approx(-math.log(1000), rel=ROUNDING)


def test_uniforms_depend_on_seed_and_position_alone():
    both = row_uniforms([3, 4], 7)
    assert torch.equal(both[1], row_uniforms([4], 9)[0, :7])
    assert not torch.equal(both[0], both[1])
    assert not torch.equal(both[0], row_uniforms([3 + 2**32], 7)[0])
    assert row_uniforms([-1], 2).shape == (1, 2)
    assert float(both.min()) >= 0 and float(both.max()) < 1
