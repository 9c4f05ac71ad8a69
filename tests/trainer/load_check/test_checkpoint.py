"""Faults of adapters and checkpoints are planted; the check must find and name them."""

import json

import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from tests.refusals import refused
from tests.trainer.load_check.runs import PROBLEMS, TOKENIZER, Run, saved
from tests.trainer.tokenizers_for_tests import byte_tokenizer
from trainer.load_check import checkpoint
from trainer.policy import adapters
from trainer.policy.adapters import adapter_disabled

LORA = {"model.lora.r": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("model"))


def forget_adapter(run, monkeypatch):
    """The engine samples from the base model, as if its weights were never synced."""
    generate = run.engine.generate

    def without(*arguments):
        with adapter_disabled(run.models.causal_lm):
            return generate(*arguments)

    monkeypatch.setattr(run.engine, "generate", without)


def adapt_nothing(run, monkeypatch):
    for layer in adapters._layers(run.models.causal_lm):
        layer.scaling["default"] = 0.0


def scale_adapter_wrongly(run, monkeypatch):
    """Training uses another scale than the saved settings state."""
    for layer in adapters._layers(run.models.causal_lm):
        layer.scaling["default"] = 3.0


def save_other_weights(run, monkeypatch):
    save = checkpoint.save_weights

    def wrong(folder, model, weights):
        save(folder, model, {name: tensor * 1.2 for name, tensor in weights.items()})

    monkeypatch.setattr(checkpoint, "save_weights", wrong)


def lose_a_tensor(run, monkeypatch):
    save = checkpoint.save_weights

    def without(folder, model, weights):
        save(folder, model, {name: t for name, t in weights.items() if "down_proj" not in name})

    monkeypatch.setattr(checkpoint, "save_weights", without)


def save_another_tokenizer(run, monkeypatch):
    save = byte_tokenizer(bos=True).save_pretrained
    monkeypatch.setattr(TOKENIZER, "save_pretrained", lambda folder: save(folder))


def break_generation_config(run, monkeypatch):
    run.models.causal_lm.generation_config.max_new_tokens = -1


FAULTS = [
    (forget_adapter, LORA, "paths-differ", "the adapter is missing or stale"),
    (adapt_nothing, LORA, "paths-differ", "the adapter does not change its outputs"),
    (scale_adapter_wrongly, LORA, "checkpoint-differs", "its log-probabilities differ"),
    (save_other_weights, {}, "checkpoint-differs", "its log-probabilities differ"),
    (save_other_weights, LORA, "checkpoint-differs", "its log-probabilities differ"),
    (lose_a_tensor, {}, "checkpoint-differs", ""),
    (save_another_tokenizer, {}, "checkpoint-differs", "its tokenizer reads"),
    (break_generation_config, {}, "checkpoint-differs", "`max_new_tokens` must be greater than 0"),
]


@pytest.mark.parametrize(
    ("plant", "settings", "code", "part"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS]
)
def test_planted_fault_is_found_and_named(model, monkeypatch, plant, settings, code, part):
    run = Run(model, **settings)
    plant(run, monkeypatch)
    with refused(code, names=[part]):
        run.check()


def test_generation_config_that_transformers_does_not_save_is_mended(tmp_path):
    folder = saved(tmp_path)
    settings = {"do_sample": False, "temperature": 0.9, "top_p": 0.6, "eos_token_id": 1}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    run = Run(folder)
    run.check()
    assert run.models.causal_lm.generation_config.do_sample is True


def test_checkpoint_of_a_type_whose_class_rebuilds_the_tokenizer_passes(tmp_path, monkeypatch):
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    run = Run(saved(tmp_path))  # a Qwen2 model, for which AutoTokenizer adds no space
    run.tokenizer = tokenizer
    tokenizer.save_pretrained(tmp_path)
    text = PROBLEMS[0].prompt
    assert AutoTokenizer.from_pretrained(tmp_path).encode(text) != tokenizer.encode(text)
    run.check()


def test_adapter_is_as_before_after_the_check(model):
    run = Run(model, **LORA)
    before = {n: t.clone() for n, t in run.models.causal_lm.state_dict().items()}
    run.check()
    assert all(
        torch.equal(before[name], tensor)
        for name, tensor in run.models.causal_lm.state_dict().items()
    )


def test_large_weights_are_not_written(model, monkeypatch):
    monkeypatch.setattr(checkpoint, "_MAX_BYTES", 0)
    monkeypatch.setattr(
        checkpoint, "save_weights", lambda *arguments: pytest.fail("weights were written")
    )
    Run(model).check()
