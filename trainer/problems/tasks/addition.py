"""Sums of two numbers: a task that a small pretrained model half knows."""

import hashlib
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trainer.errors import ConfigError

Split = Literal["train", "dev", "test"]

_SPLIT_OF_TENTH: tuple[Split, ...] = ("train",) * 6 + ("dev",) * 2 + ("test",) * 2


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
        """The sum in decimals."""
        return str(self.left + self.right)


def split_of(left: int, right: int) -> Split:
    """Return train for 6 tenths of the sums, dev for 2 and test for 2; ``a + b`` and ``b + a`` are
    one problem.
    """
    pair = f"{min(left, right)}+{max(left, right)}".encode()
    return _SPLIT_OF_TENTH[
        int.from_bytes(hashlib.blake2b(pair, digest_size=8).digest(), "big") % 10
    ]


def generate(split: Split, digits: Sequence[int], size: int, seed: int = 0) -> list[Sum]:
    """Return different sums of one split, in an order that follows from the seed.

    Numbers have as many digits as ``digits`` says in turn: 1 to 3, for there are too many pairs of
    longer ones to list. The splits share no pair of numbers.

    Raises:
        ConfigError: more sums than there are.
    """
    kinds = sorted(set(digits))
    in_turn = itertools.zip_longest(*(_shuffled(split, count, seed) for count in kinds))
    taken = list(itertools.islice(filter(None, itertools.chain.from_iterable(in_turn)), size))
    if len(taken) < size:
        raise ConfigError(
            f"there are only {len(taken)} different {split} sums of numbers with {kinds} digits, "
            f"not {size}",
            "generated sums",
            f"size: {len(taken)}, or more digits",
        )
    return taken


def _shuffled(split: Split, digits: int, seed: int) -> list[Sum]:
    numbers = range(0 if digits == 1 else 10 ** (digits - 1), 10**digits)
    sums = [Sum(a, b, digits) for a in numbers for b in numbers if split_of(a, b) == split]
    random.Random(f"{split} {digits} {seed}").shuffle(sums)
    return sums
