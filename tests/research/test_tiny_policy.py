import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from research.tiny_policy import TinyRecipe, demonstrations, warm_start, write_policy
from research.tiny_teacher import build_tokenizer
from rewards.knights_knaves import score
from trainer.policy.architectures import TINY_FOLDER
from trainer.problems.tasks.knights_knaves import PREFILL, compact_prompt
from trainer.problems.tasks.puzzle_generator import generate
from trainer.rollouts.engine import SamplingParams
from trainer.rollouts.transformers import TransformersEngine


@pytest.mark.slow
def test_the_policy_of_the_package_solves_half_of_the_puzzles():
    tokenizer = AutoTokenizer.from_pretrained(TINY_FOLDER)
    engine = TransformersEngine(
        AutoModelForCausalLM.from_pretrained(TINY_FOLDER), pad_token_id=tokenizer.pad_token_id
    )
    puzzles = generate("dev", [2, 3], 48, seed=0)
    prompts = [tokenizer(compact_prompt(puzzle) + PREFILL)["input_ids"] for puzzle in puzzles]
    seeds = [[8 * index + number for number in range(8)] for index in range(len(puzzles))]
    params = SamplingParams(
        temperature=1.0, max_new_tokens=160, stop_token_ids=(tokenizer.eos_token_id,)
    )
    right = []
    for puzzle, samples in zip(puzzles, engine.generate(prompts, seeds, params), strict=True):
        texts = [tokenizer.decode(sample.token_ids, skip_special_tokens=True) for sample in samples]
        right += [score(PREFILL + text, puzzle.solution_text).correct for text in texts]
    assert 0.35 < sum(right) / len(right) < 0.7


def test_the_package_holds_the_recipes_tokenizer_and_shape(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(TINY_FOLDER)
    model = AutoModelForCausalLM.from_pretrained(TINY_FOLDER, use_safetensors=True)
    written = write_policy(tmp_path / "written", TinyRecipe(steps=1, puzzles=64))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (written / name).read_text() == (TINY_FOLDER / name).read_text()
    for name in ("config.json", "generation_config.json"):
        ours, packaged = (
            json.loads((folder / name).read_text()) for folder in (written, TINY_FOLDER)
        )
        # transformers writes its own version beside what it was asked to write
        assert {**ours, "transformers_version": ""} == {**packaged, "transformers_version": ""}
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
    random_state = torch.get_rng_state()
    threads = torch.get_num_threads()
    first = warm_start(recipe)[0].state_dict()
    second = warm_start(recipe)[0].state_dict()
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.get_num_threads() == threads
    assert all(torch.equal(first[key], second[key]) for key in first)
