"""Whether more seeds of the baseline alone find more than the same trials spread over all
configurations.

    python -m research.baseline_seeds            # a few seconds

A sweep of equal seeds for all is held against one whose baseline has extra seeds and whose other
configurations have fewer, at the same number of trials. Extra seeds have no partner to be paired
with, so they say the less the more of the variance lies in seeds that are good or bad for all
configurations alike (the seeds' fraction of it). They enter with the weights that are best for the
true fraction, as no real sweep knows it: what is printed is the most they can give. With d = x -
(1 - w) b - w e, the means x of a configuration and b of the baseline on n shared seeds and e of the
baseline on m extra ones, and the seeds' fraction s, var d = (1 - s) (1 + (1 - w)^2) / n +
w^2 (s / n + 1 / m), least at w = (1 - s) m / (n + m).
"""

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboards.statistics.levels import SIGNIFICANCE_LEVEL
from research.tables import percent, print_rows

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Sweep:
    """How many trials of what."""

    configurations: int  # besides the baseline
    seeds: int  # shared by all
    extra: int  # of the baseline alone

    @property
    def trials(self) -> int:
        return (self.configurations + 1) * self.seeds + self.extra

    def statistics(self, fraction: float, effect: float, sweeps: int) -> Array:
        """Differences from the baseline in standard errors, [sweeps, configurations]; the first has
        the effect.

        Args:
            fraction: of the variance of a score, the part that its seed determines, the same
                for all configurations.
            effect: in standard deviations of what pairing leaves.
            sweeps: simulated ones.
        """
        generator = np.random.default_rng(3)
        sd = np.sqrt(1 - fraction)
        means = (
            generator.standard_normal((sweeps, self.configurations + 1)) * sd / np.sqrt(self.seeds)
        )
        means[:, 1] += effect * sd
        weight = (1 - fraction) * self.extra / (self.seeds + self.extra)
        difference = means[:, 1:] - means[:, :1]
        variance = 2 * (1 - fraction) / self.seeds
        if self.extra:
            # The mean effect of the shared seeds is in every configuration, and not in the extra
            # seeds.
            shared = generator.standard_normal(sweeps) * np.sqrt(fraction / self.seeds)
            extra = generator.standard_normal(sweeps) / np.sqrt(self.extra)
            difference += weight * (means[:, :1] + shared[:, None] - extra[:, None])
            variance = (1 - fraction) * (1 + (1 - weight) ** 2) / self.seeds
            variance += weight**2 * (fraction / self.seeds + 1 / self.extra)
        return difference / np.sqrt(variance)

    def found(self, fraction: float, effect: float, sweeps: int) -> Array:
        """Whether each sweep finds the first configuration, at the level of the verdict, with known
        noise.
        """
        critical = np.quantile(
            self.statistics(fraction, 0.0, 4 * sweeps).max(axis=1), 1 - SIGNIFICANCE_LEVEL
        )
        statistics = self.statistics(fraction, effect, sweeps)
        return (statistics.argmax(axis=1) == 0) & (statistics[:, 0] > critical)


def pairs() -> list[tuple[Sweep, Sweep]]:
    """Equal seeds, and the same trials with about sqrt(configurations) times the seeds for the
    baseline.
    """
    return [
        (Sweep(1, 6, 0), Sweep(1, 5, 2)),
        (Sweep(2, 8, 0), Sweep(2, 7, 3)),
        (Sweep(4, 6, 0), Sweep(4, 5, 5)),
        (Sweep(9, 4, 0), Sweep(9, 3, 10)),
        (Sweep(23, 4, 0), Sweep(23, 3, 24)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sweeps", type=int, default=20_000, help="simulated sweeps a cell (default: 20000)"
    )
    sweeps = parser.parse_args().sweeps
    fractions = (0.0, 0.4, 0.8)
    rows = []
    for equal, more in pairs():
        assert equal.trials == more.trials
        cells = [
            (plan.found(fraction, 2.0, sweeps)) for fraction in fractions for plan in (equal, more)
        ]
        counts = f"{equal.trials} trials", f"{equal.seeds}", f"{more.seeds} + {more.extra}"
        rows.append([str(equal.configurations), *counts, *(percent(cell) for cell in cells)])
    headings = [
        f"fraction {fraction:g}: {plan}, %" for fraction in fractions for plan in ("equal", "extra")
    ]
    print_rows(
        "Found at 2 sd of what pairing leaves",
        ["besides the baseline", "", "seeds", "or, + baseline's", *headings],
        rows,
    )


if __name__ == "__main__":
    main()
