import random

import pytest

from research.tiny_policy import TinyRecipe, demonstrations
from research.tiny_teacher import END, build_tokenizer, demonstration, vocabulary
from rewards.knights_knaves import score
from trainer.problems.tasks.knights_knaves import PREFILL
from trainer.problems.tasks.puzzle_generator import generate


@pytest.mark.parametrize("people", [2, 3, 4])
def test_the_reward_accepts_what_a_careful_teacher_writes(people):
    for puzzle in generate("dev", [people], 50, seed=0):
        text = PREFILL + demonstration(puzzle, random.Random(0), value_error=0, verdict_error=0)
        assert score(text, puzzle.solution_text).correct


def test_a_sloppy_teacher_is_often_wrong_but_keeps_the_form():
    rng = random.Random(0)
    puzzles = generate("train", [2, 3], 400, seed=0)
    scores = [score(PREFILL + demonstration(p, rng, 0.12, 0.01), p.solution_text) for p in puzzles]
    assert all(s.parsed for s in scores)
    assert 0.5 < sum(s.correct for s in scores) / len(scores) < 0.8


def test_tokens_are_words_and_decoding_gives_the_text_back():
    tokenizer = build_tokenizer()
    assert len(set(vocabulary())) == len(tokenizer) < 128
    for prompt, completion in demonstrations(TinyRecipe(people=(2, 3, 8)), 30):
        prompt_ids = tokenizer(prompt)["input_ids"]
        ids = tokenizer(prompt + completion)["input_ids"]
        assert ids == prompt_ids + tokenizer(completion)["input_ids"]
        assert tokenizer.decode(ids) == prompt + completion
        assert tokenizer.decode(ids, skip_special_tokens=True) == (
            prompt + completion
        ).removesuffix(END)
        assert ids[-1] == tokenizer.eos_token_id and tokenizer.unk_token_id not in ids
    assert tokenizer.tokenize(" Ava says Liam is a knave ;<think>") == [
        " Ava",
        " says",
        " Liam is a knave",
        " ;",
        "<think>",
    ]
