"""Adapters: what they change, what they leave alone, and what they are merged into."""

import copy
import json
from itertools import chain

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from loptune.errors import ConfigError, MissingError, StorageError
from tests.conftest import random_model
from tests.refusals import refused
from trainer.config.model import LoraConfig, ModelConfig
from trainer.config.schema import load_config
from trainer.policy.adapters import (
    adapter_disabled,
    adapter_tensors,
    add_adapter,
    base_parameters,
    has_adapter,
)
from trainer.policy.load import load_policy
from trainer.policy.logprobs import LogprobModel
from trainer.policy.weights import load_weights, save_weights, trained_weights
from trainer.rollouts.decoding import SharedPrefixBatch, fastest_batch
from trainer.rollouts.engine import SamplingParams
from trainer.rollouts.transformers import TransformersEngine
from trainer.rollouts.vllm.sync import named_weights

CPU = torch.device("cpu")
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
IDS = torch.tensor([[5, 9, 13, 2, 40, 7, 7], [5, 9, 13, 8, 11, 60, 1]])
PROMPT_LENGTHS = torch.tensor([3, 3])
COMPLETIONS = torch.ones(2, 4, dtype=torch.int64)


def adapted(model, **settings):
    """The model with an adapter that has been trained, as far as it can be told from its
    weights.
    """
    add_adapter(model, LoraConfig(**{"r": 3, "alpha": 5.0} | settings))
    generator = torch.Generator().manual_seed(7)
    for tensor in adapter_tensors(model).values():
        tensor.data.copy_(0.2 * torch.randn(tensor.shape, generator=generator))
    return model


def saved(model, folder):
    folder.mkdir()
    save_weights(folder, model, trained_weights(model))


def logprobs(model):
    return LogprobModel(model, 1.0, 4)(IDS, PROMPT_LENGTHS, COMPLETIONS).logprobs


def test_a_new_adapter_changes_nothing_and_alone_is_trained(causal_lm):
    before = causal_lm(input_ids=IDS).logits
    names = [name for name, _ in causal_lm.named_parameters()]
    add_adapter(causal_lm, LoraConfig(r=3))
    assert torch.equal(causal_lm(input_ids=IDS).logits, before)
    trained = [parameter for parameter in causal_lm.parameters() if parameter.requires_grad]
    assert {id(p) for p in trained} == {id(p) for p in adapter_tensors(causal_lm).values()}
    # Two layers of width 32, 4 heads of 8 (2 of keys), inner width 48: in + out of each linear
    # layer, times r.
    assert sum(p.numel() for p in trained) == 3 * 2 * (64 + 48 + 48 + 64 + 80 + 80 + 80)
    assert [base.name for base in base_parameters(causal_lm)] == names


def test_switched_off_it_is_the_model_of_before_exactly(causal_lm):
    before = causal_lm(input_ids=IDS).logits
    adapted(causal_lm)
    assert not torch.allclose(causal_lm(input_ids=IDS).logits, before, atol=1e-2)
    with adapter_disabled(causal_lm):
        assert torch.equal(causal_lm(input_ids=IDS).logits, before)
    assert all(tensor.requires_grad for tensor in adapter_tensors(causal_lm).values())


@pytest.mark.parametrize(
    "settings", [{}, {"rslora": True}, {"target_modules": ["q_proj", "up_proj"]}]
)
def test_merged_one_by_one_they_are_what_peft_merges_at_once(causal_lm, tmp_path, settings):
    base = copy.deepcopy(causal_lm)
    adapted(causal_lm, **settings)
    saved(causal_lm, tmp_path / "adapter")
    theirs = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / "adapter")
    torch.testing.assert_close(theirs(input_ids=IDS).logits, causal_lm(input_ids=IDS).logits)
    expected = dict(theirs.merge_and_unload().named_parameters())
    ours = dict(named_weights(causal_lm))
    assert list(ours) == [name for name, _ in base.named_parameters()]
    largest = max(float((ours[name] - expected[name]).abs().max()) for name in expected)
    print(f"\nlargest difference {largest:.1e}")
    assert largest < 1e-5
    before = dict(base.named_parameters())
    changed = {name.split(".")[-2] for name in ours if not torch.equal(ours[name], before[name])}
    assert changed == set(settings.get("target_modules", PROJECTIONS))


def test_dropout_acts_in_updates_but_not_in_scoring():
    model = adapted(random_model(), dropout=0.5)
    without_dropout = adapted(random_model())
    with torch.no_grad():
        assert torch.equal(logprobs(model), logprobs(without_dropout))
    assert not torch.allclose(logprobs(model), logprobs(without_dropout), atol=1e-3)


def test_samples_are_those_of_the_merged_model():
    model = adapted(random_model(), alpha=2.0)
    merged = random_model()
    merged.load_state_dict(dict(named_weights(model)), strict=False)
    assert fastest_batch(model, 0) is SharedPrefixBatch
    params = SamplingParams(temperature=0.8, max_new_tokens=12, stop_token_ids=(3,))
    prompts = [[1, 2, 3], [4, 5, 6, 7]]
    seeds = [[1, 2, 3], [4, 5]]
    ours, theirs = (
        TransformersEngine(each, pad_token_id=0).generate(prompts, seeds, params)
        for each in (model, merged)
    )
    for sample, expected in zip(chain(*ours), chain(*theirs), strict=True):
        assert sample.token_ids == expected.token_ids
        torch.testing.assert_close(
            torch.tensor(sample.rollout_logprobs),
            torch.tensor(expected.rollout_logprobs),
            atol=1e-4,
            rtol=0,
        )


def test_a_checkpoint_of_another_rank_does_not_fit(tmp_path):
    saved(adapted(random_model()), tmp_path / "adapter")
    with refused("other-adapter", StorageError):
        load_weights(tmp_path / "adapter", adapted(random_model(), r=2))


def test_an_adapters_folder_is_its_base_model_with_it_merged(tmp_path):
    random_model().save_pretrained(tmp_path / "base")
    model = random_model()
    add_adapter(model, LoraConfig(r=2), base=str(tmp_path / "base"))
    for tensor in adapter_tensors(model).values():
        torch.nn.init.normal_(tensor, std=0.2)
    saved(model, tmp_path / "adapter")
    loaded = load_policy(ModelConfig(name_or_path=str(tmp_path / "adapter")), CPU)
    assert not has_adapter(loaded) and all(p.requires_grad for p in loaded.parameters())
    torch.testing.assert_close(logprobs(loaded), logprobs(model), atol=1e-5, rtol=1e-5)

    settings = tmp_path / "adapter" / "adapter_config.json"
    for change in ({"base_model_name_or_path": None}, {"peft_type": "IA3"}):
        settings.write_text(json.dumps(json.loads(settings.read_text()) | change))
        with refused("no-adapter", MissingError):
            load_policy(ModelConfig(name_or_path=str(tmp_path / "adapter")), CPU)


def keep_names(name):
    return name


def lose_prefix(name):
    return name.removeprefix("base_model.model.")


def name_another_layer(name):
    return name.replace("q_proj", "qkv_proj")


@pytest.mark.parametrize(
    ("rename", "targets", "named"),
    [
        (lose_prefix, ["q_proj"], "lacks base_model.model"),
        (name_another_layer, ["q_proj"], "no layer for base_model.model"),
        (keep_names, ["k_proj", "q_proj"], "k_proj"),
        (keep_names, ["k_proj"], "q_proj"),
    ],
)
def test_an_adapter_of_which_peft_loads_only_a_part_is_refused(tmp_path, rename, targets, named):
    base = tmp_path / "base"
    random_model().save_pretrained(base)
    adapter = tmp_path / "adapter"
    model = load_policy(ModelConfig(name_or_path=str(base)), CPU)
    add_adapter(model, LoraConfig(r=2, target_modules=["q_proj"]), base=str(base))
    saved(model, adapter)
    file = adapter / "adapter_model.safetensors"
    save_file({rename(name): tensor for name, tensor in load_file(file).items()}, file)
    settings = json.loads((adapter / "adapter_config.json").read_text())
    settings["target_modules"] = targets
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    with refused("adapter-incomplete", MissingError, names=(named, "adapter_config.json")):
        load_policy(ModelConfig(name_or_path=str(adapter)), CPU)


@pytest.mark.parametrize(
    ("target", "hint"),
    [("q_prj", "did you mean q_proj"), ("lm_head", "valid: all-linear, down_proj")],
)
def test_a_layer_that_is_not_there_is_refused_by_name(target, hint):
    with refused("no-such-layer", ConfigError) as caught:
        add_adapter(random_model(tied=False), LoraConfig(r=2, target_modules=["q_proj", target]))
    assert target in caught.value.what and hint in caught.value.hint


def test_one_name_of_a_layer_needs_no_list():
    config = load_config("tiny_kk", ["model.lora.r=8", "model.lora.target_modules=q_proj"])
    assert config.model.lora == LoraConfig(r=8, target_modules=["q_proj"])
