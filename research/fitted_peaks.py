"""How often are intervals of fitted peaks wrong? Simulates three rules on one grid of seven
learning rates in half octaves.

    python -m research.fitted_peaks            # two minutes

Means follow a parabola with a curvature of 0.02 per squared octave. Beyond three quarters of an
octave above the peak, they collapse by another ``collapse`` per squared octave. The table shows how
often a gain is claimed although all peaks are equally high (at most 5% are promised), how many
rules have no peak in the grid, and how often a gain is claimed if both other rules are better by
0.02. In rows with ``all``, the parabola is fitted to all seven values instead of the five around
the best.
"""

from unittest import mock

import numpy as np

from dashboards.statistics import peaks
from dashboards.statistics.peaks import Grid, compare_peaks

TIMES = 1000
OCTAVES = np.arange(7) / 2
FIRST = 1.5  # position of the first rule's peak, in octaves above the lowest learning rate
RIVALS = 2
GAIN = 0.02


def mean_scores(place: float, collapse: float, gain: float) -> np.ndarray:
    """Return the true score of a rule at every value of the grid."""
    beyond = np.clip(OCTAVES - place - 0.75, 0, None)
    return 0.6 + gain - 0.02 * (OCTAVES - place) ** 2 - collapse * beyond**2


def simulate(
    seeds: int, spread: float, place: float, collapse: float, gain: float
) -> tuple[float, float]:
    """Return the fraction of sweeps in which a gain is claimed, and the fraction of rivals without
    a peak.
    """
    generator = np.random.default_rng(0)
    rules = ["first", *(f"rival {number}" for number in range(RIVALS))]
    means = np.array(
        [mean_scores(FIRST, collapse, 0.0), *[mean_scores(place, collapse, gain)] * RIVALS]
    )
    claims = 0
    without = 0
    for _ in range(TIMES):
        noise = spread * generator.standard_normal((*means.shape, seeds))
        _, *rivals = compare_peaks(Grid("lr", rules, 2**OCTAVES, means[:, :, None] + noise))
        differences = [rival.at_best for rival in rivals]
        claims += any(
            difference is not None and difference.interval[0] > 0 for difference in differences
        )
        without += differences.count(None)
    return claims / TIMES, without / (TIMES * RIVALS)


def main() -> None:
    """Print the table."""
    print(
        "| seeds | sd of seeds | peak of the rivals | collapse | fitted | claims | no peak | found "
        "of 0.02 |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for seeds in (3, 6):
        for spread in (0.01, 0.025):
            for place, collapse in ((FIRST, 0.0), (0.7, 0.0), (0.7, 0.03), (0.7, 0.1), (2.3, 0.1)):
                for name, fitted in (("five", 5), ("all", 7)):
                    with mock.patch.object(peaks, "FITTED_VALUES", fitted):
                        claims, without = simulate(seeds, spread, place, collapse, 0.0)
                        power, _ = simulate(seeds, spread, place, collapse, GAIN)
                    octaves = f"{place - FIRST:+.1f} octaves"
                    row = [
                        seeds,
                        spread,
                        octaves,
                        collapse,
                        name,
                        f"{claims:.1%}",
                        f"{without:.0%}",
                        f"{power:.0%}",
                    ]
                    print("|", " | ".join(map(str, row)), "|", flush=True)


if __name__ == "__main__":
    main()
