"""Do extra seeds for the baseline detect more than the same number of trials spread over all
configurations?

    python -m research.baseline_seeds            # a few seconds

Two sweeps with the same number of trials are compared. In one, all configurations have the same
seeds. In the other, the baseline has extra seeds, and all other configurations have fewer. Extra
seeds cannot be paired, so they help less if a larger fraction of the variance is determined by the
seed and common to all configurations. They are weighted as is best for the true fraction, which no
real sweep knows, so the printed power is the most that they can give. With d = x - (1 - w) b - w e,
where x and b are the means of a configuration and of the baseline on n shared seeds, e is the mean
of the baseline on m extra seeds, and s is the fraction of the seeds, var d = (1 - s) (1 + (1 -
w)^2) / n + w^2 (s / n + 1 / m), which is smallest at w = (1 - s) m / (n + m).
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
    """The size of a sweep."""

    configurations: int  # number of configurations other than the baseline
    seeds: int  # number of seeds shared by all configurations
    extra: int  # number of extra seeds of the baseline

    @property
    def trials(self) -> int:
        return (self.configurations + 1) * self.seeds + self.extra

    def statistics(self, fraction: float, effect: float, sweeps: int) -> Array:
        """Return the differences from the baseline in standard errors, [sweeps, configurations];
        only the first configuration has an effect.

        Args:
            fraction: fraction of the variance of a score that the seed determines for all
                configurations alike.
            effect: effect of the first configuration, in standard deviations of the variance that
                pairing leaves.
            sweeps: number of simulated sweeps.
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
            # Every configuration has the mean effect of the shared seeds; the extra seeds do not.
            shared = generator.standard_normal(sweeps) * np.sqrt(fraction / self.seeds)
            extra = generator.standard_normal(sweeps) / np.sqrt(self.extra)
            difference += weight * (means[:, :1] + shared[:, None] - extra[:, None])
            variance = (1 - fraction) * (1 + (1 - weight) ** 2) / self.seeds
            variance += weight**2 * (fraction / self.seeds + 1 / self.extra)
        return difference / np.sqrt(variance)

    def found(self, fraction: float, effect: float, sweeps: int) -> Array:
        """Return whether each sweep detects the first configuration at the verdict's level, with
        known noise.
        """
        critical = np.quantile(
            self.statistics(fraction, 0.0, 4 * sweeps).max(axis=1), 1 - SIGNIFICANCE_LEVEL
        )
        statistics = self.statistics(fraction, effect, sweeps)
        return (statistics.argmax(axis=1) == 0) & (statistics[:, 0] > critical)


def pairs() -> list[tuple[Sweep, Sweep]]:
    """Return pairs of sweeps with the same number of trials: one with equal seeds for all, one with
    about sqrt(configurations) times as many seeds for the baseline.
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
        "--sweeps", type=int, default=20_000, help="simulated sweeps per cell (default: 20000)"
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
