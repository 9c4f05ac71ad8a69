from loptune.errors import ConfigError
from tests.refusals import refused
from trainer.problems.tasks.addition import Sum, generate, split_of


def test_the_splits_of_one_digit_hold_every_sum_once_and_share_none():
    sizes = {"train": 59, "dev": 24, "test": 17}
    parts = {split: generate(split, [1], size, seed=0) for split, size in sizes.items()}
    pairs = [(item.left, item.right) for part in parts.values() for item in part]
    assert sorted(pairs) == [(a, b) for a in range(10) for b in range(10)]
    assert all(split_of(a, b) == split_of(b, a) for a, b in pairs)


def test_a_sum_is_asked_and_answered_in_decimals():
    problem = Sum(7, 8, digits=1)
    assert problem.question == "What is 7 + 8? Reply with the number only."
    assert problem.answer == "15"


def test_digits_come_in_turn_and_the_seed_decides_the_order():
    sums = generate("train", [1, 2], 6, seed=3)
    assert [item.digits for item in sums] == [1, 2, 1, 2, 1, 2]
    assert all(10 <= n < 100 for item in sums if item.digits == 2 for n in (item.left, item.right))
    assert sums == generate("train", [2, 1], 6, seed=3)
    assert sums != generate("train", [1, 2], 6, seed=4)


def test_more_sums_than_there_are_is_refused():
    with refused("too-few-exist", ConfigError, names=("59", "train")) as caught:
        generate("train", [1], 60, seed=0)
    assert caught.value.hint == "set size to at most 59, or allow more digits"
