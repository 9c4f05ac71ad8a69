from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainer.policy import tiny
from trainer.policy.tiny import TinyRecipe, demonstrations, ensure_tiny_policy, fingerprint, warm_start
from trainer.policy.tiny_teacher import build_tokenizer
from trainer.problems.tasks.puzzle_generator import existing

SHORT = TinyRecipe(steps=30, puzzles=64)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def folder(cache: Path) -> Path:
    return ensure_tiny_policy(cache, SHORT)


def test_demonstrations_beyond_the_existing_puzzles_are_disguised_ones() -> None:
    count = 2 * (existing("train", 2) or 0)
    shown = [prompt for prompt, _ in demonstrations(TinyRecipe(people=(2,)), count)]
    assert len(shown) == count
    assert len(set(shown)) > 0.95 * count


def test_the_folder_loads_as_any_other_model(folder: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.init_kwargs["loptune_compact_prompts"] is True
    model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True)
    assert model.config.model_type == "qwen2"
    assert (
        (model.config.eos_token_id, model.config.pad_token_id)
        == (2, 0)
        == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    )
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert 100_000 < sum(parameter.numel() for parameter in model.parameters()) < 110_000
    prompt, completion = demonstrations(SHORT, 1)[0]
    assert tokenizer(prompt)["input_ids"] == build_tokenizer()(prompt)["input_ids"]

    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(prompt + completion)["input_ids"] == tokenizer(prompt + completion)["input_ids"]
    assert again.init_kwargs["loptune_compact_prompts"] is True


def test_a_second_call_finds_the_folder(cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "warm_start", lambda recipe: pytest.fail("trained again"))
    assert ensure_tiny_policy(cache, SHORT) == folder
    monkeypatch.setenv("LOPTUNE_CACHE", str(cache))
    assert ensure_tiny_policy(recipe=SHORT) == folder


def test_every_field_of_the_recipe_is_part_of_the_name() -> None:
    changes = {"seed": 1, "steps": 31, "lr": 1e-3, "people": (2,), "value_error": 0.5, "width": 32}
    names = {fingerprint(replace(SHORT, **{key: value})) for key, value in changes.items()}
    assert len(names | {fingerprint(SHORT)}) == len(changes) + 1
    assert fingerprint(SHORT) == fingerprint(TinyRecipe(steps=30, puzzles=64))


def test_training_repeats_exactly_and_leaves_global_state_alone() -> None:
    recipe = replace(SHORT, steps=3)
    random_state, threads = torch.get_rng_state(), torch.get_num_threads()
    first, second = warm_start(recipe)[0].state_dict(), warm_start(recipe)[0].state_dict()
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.get_num_threads() == threads
    assert all(torch.equal(first[key], second[key]) for key in first)
