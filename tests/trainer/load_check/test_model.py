"""One fault is planted in each path; the check must find it and name the part."""

import copy
import logging
import os
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers import (
    FalconH1Config,
    FalconH1ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma2PreTrainedModel,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tests.refusals import refused
from tests.trainer.load_check.runs import PROBLEMS, Run, saved
from trainer import load_check
from trainer.policy import compiled_layers, logprobs
from trainer.policy.load import load_tokenizer
from trainer.rollouts import decoding
from trainer.rollouts import transformers as engine_module

SHAPE = {
    "vocab_size": 258,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def llama(**changes):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE | changes)).eval()


def gemma2(**changes):
    torch.manual_seed(0)
    return Gemma2ForCausalLM(
        Gemma2Config(**SHAPE | {"head_dim": 8, "query_pre_attn_scalar": 8} | changes)
    ).eval()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("model"))


def shift_positions(run, monkeypatch):
    """Sampled tokens get the position before their own."""
    prefill = engine_module.prefill_prompts

    def shifted(*arguments):
        state = prefill(*arguments)
        return replace(state, positions=state.positions - 1)

    monkeypatch.setattr(engine_module, "prefill_prompts", shifted)


def shift_positions_of_any_model(run, monkeypatch):
    run.engine._batch_class = decoding.CachedBatch
    shift_positions(run, monkeypatch)


def swap_caches(run, monkeypatch):
    """Every row continues another prompt's cache."""
    original = decoding._LayerCache.__init__

    def swapped(self, keys, values, rows):
        original(self, keys.flip(0), values.flip(0), rows)

    run.engine._batch_class = decoding.SharedPrefixBatch  # chosen before
    monkeypatch.setattr(decoding._LayerCache, "__init__", swapped)


def attend_to_padding(run, monkeypatch):
    """Shorter prompts see the padding before them."""
    original = decoding.next_logits

    def unmasked(model, input_ids, mask, positions, cache):
        return original(model, input_ids, torch.ones_like(mask), positions, cache)

    monkeypatch.setattr(decoding, "next_logits", unmasked)


def keep_old_weights(run, monkeypatch):
    """The engine samples from weights that were not synced."""
    run.engine.model = copy.deepcopy(run.engine.model)
    with torch.no_grad():
        run.engine.model.model.layers[0].mlp.up_proj.weight.mul_(1.5)


def sample_at_another_temperature(run, monkeypatch):
    original = engine_module.sample_tokens

    def warmer(logits, uniforms, params):
        return original(logits, uniforms, replace(params, temperature=1.0))

    monkeypatch.setattr(engine_module, "sample_tokens", warmer)


def ignore_stop_tokens(run, monkeypatch):
    original = run.engine.generate

    def endless(prompts, seeds, params):
        return original(prompts, seeds, replace(params, stop_token_ids=()))

    monkeypatch.setattr(run.engine, "generate", endless)


def stop_early(run, monkeypatch):
    original = run.engine.generate

    def short(prompts, seeds, params):
        return original(prompts, seeds, replace(params, stop_token_ids=(0, 1, *range(30, 200))))

    monkeypatch.setattr(run.engine, "generate", short)


def leave_dropout_on(run, monkeypatch):
    """Training mode, as with gradient checkpointing, and an active dropout."""
    layer = run.models.causal_lm.model.layers[0]
    layer.mlp.act_fn = torch.nn.Sequential(layer.mlp.act_fn, torch.nn.Dropout(0.3))
    run.models.causal_lm.train()


def leak_packed_rows(run, monkeypatch):
    """The completions of a prompt see each other's tokens."""
    original = logprobs.pack

    def leaking(*arguments):
        packing = original(*arguments)
        ids = packing.input_ids.clone()
        ids[-1] = (ids[-1] + 7) % 258
        ids[: len(ids) // 2] = ids[: len(ids) // 2].flip(0)
        return replace(packing, input_ids=ids)

    monkeypatch.setattr(logprobs, "pack", leaking)


def leak_rows_in_line(run, monkeypatch):
    """Rows in one line are taken as one row."""

    def leaking(model, input_ids, line):
        line_ids = input_ids[line.rows, line.positions][None]
        hidden = model.base_model(input_ids=line_ids, use_cache=False).last_hidden_state
        return hidden[0].index_select(0, line.predicting)

    monkeypatch.setattr(logprobs, "hidden_states_in_line", leaking)


def miscompile_layers(run, monkeypatch):
    def compiled(forward):
        def wrong(layer, hidden_states, **options):
            return forward(layer, hidden_states * 1.1, **options)

        return wrong

    monkeypatch.setattr(compiled_layers, "_compiled", compiled)


def change_logits(run, monkeypatch):
    """The model divides its logits, which the scoring head does not know."""
    run.models.causal_lm.lm_head.register_forward_hook(lambda module, inputs, out: out / 2)
    monkeypatch.setattr(run.engine, "_batch_class", decoding.CachedBatch)


def load_other_weights(run, monkeypatch):
    with torch.no_grad():
        run.models.causal_lm.model.layers[1].self_attn.q_proj.weight.zero_()


def scale_rope_wrongly(run, monkeypatch):
    rotary = run.models.causal_lm.model.rotary_emb
    rotary.inv_freq = rotary.inv_freq / 4


FAULTS = [
    (shift_positions, {}, "sampling", "the KV cache"),
    (shift_positions_of_any_model, {}, "sampling", "the KV cache"),
    (swap_caches, {}, "sampling", "the KV cache"),
    (attend_to_padding, {}, "sampling", "the batch"),
    (keep_old_weights, {}, "sampling", "the engine's weights"),
    (sample_at_another_temperature, {}, "sampling", "temperature"),
    (ignore_stop_tokens, {}, "sampling", "the engine's stop tokens"),
    (stop_early, {}, "sampling", "the engine's stop tokens"),
    (leave_dropout_on, {"model.attn_implementation": "eager"}, "scoring", "dropout"),
    (leak_packed_rows, {}, "scoring", "the packed rows"),
    (leak_rows_in_line, {"model.packing": True}, "scoring", "packing"),
    (miscompile_layers, {"model.compile": "layers"}, "scoring", "the compiled layers"),
    (
        miscompile_layers,
        {"model.compile": "layers", "model.packing": True},
        "scoring",
        "the compiled layers",
    ),
    (change_logits, {}, "scoring", "the scoring head"),
    (load_other_weights, {}, "the loaded policy", "the loaded weights"),
    (scale_rope_wrongly, {}, "the loaded policy", "the loaded weights or positions"),
]


@pytest.mark.parametrize(
    ("plant", "settings", "path", "part"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS]
)
def test_planted_fault_is_found_and_named(model, monkeypatch, plant, settings, path, part):
    run = Run(model, **settings)
    plant(run, monkeypatch)
    with refused("paths-differ", names=[f"{path} of ", part]):
        run.check()


@pytest.mark.parametrize(
    "settings",
    [{}, {"model.packing": True}, {"model.gradient_checkpointing": True}, {"model.lora.r": 2}],
    ids=str,
)
def test_sound_run_passes(model, caplog, settings):
    with caplog.at_level(logging.INFO):
        Run(model, **settings).check()
    assert "agree within 0.001 nats (" in caplog.text


def test_dynamic_rope_beyond_its_length_is_refused(tmp_path):
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    model = saved(tmp_path, llama(max_position_embeddings=64, rope_parameters=rope))
    Run(model).check()  # 34 + 12 tokens
    with refused("paths-differ", names=["positions beyond 64", "at most 64"]):
        Run(model, **{"rollout.max_new_tokens": 60}).check()


def test_dynamic_rope_is_named_also_if_the_problems_themselves_are_longer(tmp_path):
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    model = saved(tmp_path, llama(max_position_embeddings=24, rope_parameters=rope))
    with refused("paths-differ", names=["positions beyond 24", "at most 24"]):
        Run(model).check()  # prompts of 4 to 33 tokens


def test_a_model_without_positions_for_the_longest_row_is_refused(tmp_path):
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
    model = saved(tmp_path, GPT2LMHeadModel(GPT2Config(vocab_size=258, bos_token_id=0, **sizes)))
    Run(model, **{"rollout.max_new_tokens": 30}).check()  # 33 + 30 tokens
    with refused("path-does-not-run", names=["positions beyond 64", "IndexError", "at most 64"]):
        Run(model, **{"rollout.max_new_tokens": 60}).check()


def test_kernel_without_soft_capping_is_named(tmp_path, monkeypatch):
    model = saved(tmp_path, gemma2(final_logit_softcapping=None, attn_logit_softcapping=0.5))
    with refused("kernel-not-supported", key="model.attn_implementation"):
        Run(model).check()
    # a model's own code may claim what its kernel cannot do
    monkeypatch.setattr(Gemma2PreTrainedModel, "_supports_sdpa", True)
    kernel = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def without_cap(*args, softcap=None, **options):
        return kernel(*args, **options)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", without_cap)
    with refused("paths-differ", key="model.attn_implementation", names=["the attention kernel"]):
        Run(model).check()
    Run(model, **{"model.attn_implementation": "eager"}).check()


def test_soft_capped_logits_are_named(tmp_path):
    model = saved(tmp_path, gemma2(final_logit_softcapping=0.5))
    with refused("paths-differ", names=["the scoring head"]):
        Run(model, **{"model.attn_implementation": "eager"}).check()


def test_functional_dropout_is_off_in_training_mode(tmp_path):
    torch.manual_seed(0)
    model = OPTForCausalLM(
        OPTConfig(
            vocab_size=258,
            hidden_size=32,
            ffn_dim=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=256,
            word_embed_proj_dim=32,
            dropout=0.3,
            init_std=0.3,
        )
    )
    Run(saved(tmp_path, model), **{"model.gradient_checkpointing": True}).check()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Lfm2ForCausalLM(
            Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"], conv_L_cache=3)
        ),
        lambda: FalconH1ForCausalLM(
            FalconH1Config(
                **SHAPE,
                mamba_d_ssm=32,
                mamba_n_heads=4,
                mamba_d_head=8,
                mamba_d_state=8,
                mamba_n_groups=1,
                mamba_chunk_size=8,
            )
        ),
    ],
    ids=["lfm2", "falcon_h1"],
)
def test_completions_continue_copies_of_convolutions_and_recurrent_states(tmp_path, make):
    torch.manual_seed(0)
    Run(saved(tmp_path, make())).check()


def test_adapter_of_gpt2_is_sound(tmp_path, caplog):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=258, n_embd=32, n_layer=2, n_head=2, n_positions=256, bos_token_id=0)
    )
    Run(saved(tmp_path, model), **{"model.lora.r": 2}).check()
    assert "stay frozen" not in caplog.text


def test_model_is_checked_before_the_trials_of_a_sweep_if_it_is_small(tmp_path, monkeypatch):
    model = saved(tmp_path, gemma2(final_logit_softcapping=0.5))
    run = Run(model, **{"model.attn_implementation": "eager"})
    tokenizer = load_tokenizer(run.config.model)
    with refused("paths-differ", names=["the scoring head"]):
        load_check.check_before_trials(run.config, tokenizer, PROBLEMS)
    monkeypatch.setattr(load_check, "_SMALL_PARAMETERS", 0)
    load_check.check_before_trials(run.config, tokenizer, PROBLEMS)


def test_check_before_trials_leaves_their_device_open(tmp_path, monkeypatch):
    """DeepSpeed uses the CPU in the process that starts a sweep, but not in its trials."""
    run = Run(saved(tmp_path))
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    seen = []
    check = load_check.check_without_training

    def spied(*args):
        seen.append(os.environ["DS_ACCELERATOR"])
        check(*args)

    monkeypatch.setattr(load_check, "check_without_training", spied)
    load_check.check_before_trials(run.config, load_tokenizer(run.config.model), PROBLEMS)
    assert seen == ["cpu"]
    assert "DS_ACCELERATOR" not in os.environ


def test_experts_without_adapter_are_told(tmp_path, caplog):
    torch.manual_seed(0)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    model = saved(tmp_path, Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, head_dim=8, **experts)))
    Run(model, **{"model.lora.r": 2}).check()
    assert "get no adapter and stay frozen: model.layers.*.mlp.experts.down_proj" in caplog.text


def test_layers_that_do_not_compile_are_named(model, monkeypatch):
    def without_compiler(forward):
        raise RuntimeError("no C++ compiler")

    run = Run(model, **{"model.compile": "layers"})
    monkeypatch.setattr(compiled_layers, "_compiled", without_compiler)
    with refused("path-does-not-run", key="model.compile", names=["no C++ compiler", "g++"]):
        run.check()


def test_second_copy_is_left_out_if_it_would_take_minutes(model, monkeypatch, caplog):
    from trainer.load_check import published

    monkeypatch.setattr(published, "_OPERATIONS_PER_THREAD", 1e6)
    monkeypatch.setattr(published, "load_published", partial(pytest.fail, "it was loaded"))
    with caplog.at_level(logging.INFO):
        Run(model).check()
    assert "a second copy of the model would be too large" in caplog.text
