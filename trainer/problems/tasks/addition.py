"""Addition of two numbers: a task that a small pretrained model partly solves."""

import hashlib
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from loptune.errors import ConfigError
from trainer.problems.tasks.splits import Split

_SPLIT_BY_HASH: tuple[Split, ...] = ("train",) * 6 + ("dev",) * 2 + ("test",) * 2


@dataclass(frozen=True)
class Sum:
    """``left + right``, two numbers of ``digits`` digits."""

    left: int
    right: int
    digits: int

    @property
    def question(self) -> str:
        """The text of the question."""
        return f"What is {self.left} + {self.right}? Reply with the number only."

    @property
    def answer(self) -> str:
        """The sum as a decimal string."""
        return str(self.left + self.right)


def split_of(left: int, right: int) -> Split:
    """Return the split of a sum: 60% train, 20% dev, 20% test. ``a + b`` and ``b + a`` are always
    in the same split.
    """
    pair = f"{min(left, right)}+{max(left, right)}".encode()
    return _SPLIT_BY_HASH[int.from_bytes(hashlib.blake2b(pair, digest_size=8).digest(), "big") % 10]


def generate(split: Split, digits: Sequence[int], size: int, seed: int = 0) -> list[Sum]:
    """Return distinct sums of one split in a seeded order.

    Cycles through the digit counts in ``digits`` (1 to 3; longer numbers have too many pairs to
    enumerate). The splits are disjoint.

    Raises:
        ConfigError: ``size`` exceeds the number of existing sums.
    """
    digit_counts = sorted(set(digits))
    interleaved = itertools.zip_longest(*(_shuffled(split, count, seed) for count in digit_counts))
    every_sum = [a_sum for of_turn in interleaved for a_sum in of_turn if a_sum is not None]
    taken = every_sum[:size]
    if len(taken) < size:
        raise ConfigError(
            f"there are only {len(taken)} different {split} sums of numbers with {digit_counts} "
            f"digits, not {size}",
            "generated sums",
            f"set size to at most {len(taken)}, or allow more digits",
            code="too-few-exist",
        )
    return taken


def _shuffled(split: Split, digits: int, seed: int) -> list[Sum]:
    numbers = range(0 if digits == 1 else 10 ** (digits - 1), 10**digits)
    sums = [Sum(a, b, digits) for a in numbers for b in numbers if split_of(a, b) == split]
    random.Random(f"{split} {digits} {seed}").shuffle(sums)
    return sums
