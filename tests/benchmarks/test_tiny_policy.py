from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.tiny_policy import TinyRecipe, demonstrations, warm_start, write_policy
from benchmarks.tiny_teacher import build_tokenizer
from rewards.knights_knaves import score
from trainer.policy.architectures import TINY_FOLDER
from trainer.problems.tasks.knights_knaves import PREFILL, compact_prompt
from trainer.problems.tasks.puzzle_generator import existing, generate
from trainer.rollouts.engine import SamplingParams
from trainer.rollouts.transformers import TransformersEngine


def accuracy(folder: Path) -> float:
    """Share of right answers to 148 puzzles at temperature 1, eight completions each."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    engine = TransformersEngine(AutoModelForCausalLM.from_pretrained(folder), pad_token_id=tokenizer.pad_token_id)
    puzzles = generate("dev", [2, 3], 148, seed=0)
    prompts = [tokenizer(compact_prompt(puzzle) + PREFILL)["input_ids"] for puzzle in puzzles]
    seeds = [[8 * index + g for g in range(8)] for index in range(len(puzzles))]
    params = SamplingParams(temperature=1.0, max_new_tokens=160, stop_token_ids=(tokenizer.eos_token_id,))
    correct = 0
    for puzzle, samples in zip(puzzles, engine.generate(prompts, seeds, params), strict=True):
        texts = [tokenizer.decode(sample.token_ids, skip_special_tokens=True) for sample in samples]
        correct += sum(score(PREFILL + text, puzzle.solution_text).correct for text in texts)
    return correct / (8 * len(puzzles))


@pytest.mark.slow
@pytest.mark.timeout(1800)  # 80 seconds of one core
def test_the_recipe_gives_a_policy_as_good_as_the_one_in_the_package(tmp_path):
    """Weights differ between processors; sampling alone gives the difference a standard error of 2 points."""
    packaged = accuracy(TINY_FOLDER)
    trained = accuracy(write_policy(tmp_path))
    print(f"accuracy: package {packaged:.3f}, trained here {trained:.3f}")
    assert 0.4 < packaged < 0.7
    assert trained == pytest.approx(packaged, abs=0.1)


def test_demonstrations_beyond_the_existing_puzzles_are_disguised_ones():
    count = 2 * (existing("train", 2) or 0)
    shown = [prompt for prompt, _ in demonstrations(TinyRecipe(people=(2,)), count)]
    assert len(shown) == count
    assert len(set(shown)) > 0.95 * count


def test_the_package_holds_the_recipes_tokenizer_and_shape(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(TINY_FOLDER)
    model = AutoModelForCausalLM.from_pretrained(TINY_FOLDER, use_safetensors=True)
    written = write_policy(tmp_path / "written", TinyRecipe(steps=1, puzzles=64))
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (written / name).read_text() == (TINY_FOLDER / name).read_text()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    prompt, completion = demonstrations(TinyRecipe(), 1)[0]
    assert tokenizer(prompt)["input_ids"] == build_tokenizer()(prompt)["input_ids"]

    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(prompt + completion)["input_ids"] == tokenizer(prompt + completion)["input_ids"]
    assert again.init_kwargs["loptune_compact_prompts"] is True


def test_training_repeats_exactly_and_leaves_global_state_alone():
    recipe = replace(TinyRecipe(puzzles=64), steps=3)
    random_state, threads = torch.get_rng_state(), torch.get_num_threads()
    first, second = warm_start(recipe)[0].state_dict(), warm_start(recipe)[0].state_dict()
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.get_num_threads() == threads
    assert all(torch.equal(first[key], second[key]) for key in first)
