"""The seeds of a campaign's runs.

Runs are numbered: baseline k and the proposals that are compared with it have the numbers 1000 k
and above. Without a secret, the number is the seed. With a secret, the seed follows from number and
secret. Nobody who does not read the secret knows the seeds of a baseline before it runs, so changes
cannot have been chosen for their scores on these seeds.
"""

import hashlib
from dataclasses import dataclass

SEEDS_OF_A_BASELINE = 1000  # distance between the first numbers of successive baselines

_HALF = 12  # bits; seeds have twice as many
_MASK = (1 << _HALF) - 1
_ROUNDS = 4


@dataclass(frozen=True)
class Seeds:
    """The seeds of the runs, by their number."""

    secret: str | None = None

    def of(self, number: int) -> int:
        """Return the seed of a run: different for every number below 2^24."""
        if self.secret is None:
            return number
        # A Feistel network permutes the numbers, so no two runs share a seed.
        left, right = number >> _HALF, number & _MASK
        for place in range(_ROUNDS):
            left, right = right, left ^ self._mix(place, right)
        return left << _HALF | right

    def number(self, seed: int) -> int:
        """Return the number of the run with a seed; -1 if no run has it."""
        if self.secret is None:
            return seed
        if not 0 <= seed < 1 << 2 * _HALF:
            return -1
        left, right = seed >> _HALF, seed & _MASK
        for place in reversed(range(_ROUNDS)):
            left, right = right ^ self._mix(place, left), left
        return left << _HALF | right

    def baseline(self, seed: int) -> int:
        """Return the index of the baseline that runs on a seed; -1 if none does."""
        return self.number(seed) // SEEDS_OF_A_BASELINE

    def _mix(self, place: int, half: int) -> int:
        text = f"{self.secret} {place} {half}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:2], "big") & _MASK
