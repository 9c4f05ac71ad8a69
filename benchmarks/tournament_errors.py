"""How often a tournament of equal budgets names a rule better that is not, and how often it finds one that is.

    python -m benchmarks.tournament_errors --sweeps 400

A rule's score is a parabola in one parameter on [0, 1] (the logarithm of a learning rate), `depth` standard
deviations between seeds from its top to the far end; all rules are equally good at their own best, which lies at
the same place for all or at another for each. A rule is tuned on one seed: a third of its trials at the same
random places for all rules, each further one near its best so far. The best setting of each then runs on fresh
seeds. Behind every rate stands its standard error.

    fresh alone     a paired t test on fresh seeds, corrected for the number of rules: what was found may differ
    the verdict     `dashboards.statistics.tournament`, which allows for the luck of tuning
    better by 3 sd  how often the verdict finds one rule that is, at its own best
"""

import argparse

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.tables import percent, print_rows
from dashboards.statistics.dunnett import FALSE_CLAIMS
from dashboards.statistics.seed_noise import Scores
from dashboards.statistics.tournament import standings

Array = NDArray[np.float64]
_NEAR = 0.15  # standard deviation of proposals around the best so far
LAYOUTS = [(2, 8, 8), (2, 12, 8), (7, 12, 8), (7, 24, 8)]  # rules, trials of each, fresh seeds


def tuned(generator: np.random.Generator, trials: int, depth: float, tops: Array, gain: Array) -> tuple[Array, Array]:
    """Scores of all tuning trials [R, T], and the true score of the setting that each rule chose [R]."""
    rules, places, scores = np.arange(len(tops)), np.empty((len(tops), trials)), np.empty((len(tops), trials))

    def truth(at: Array) -> Array:
        return np.asarray(gain - depth * ((at - tops) / np.maximum(tops, 1 - tops)) ** 2)

    for trial in range(trials):
        if trial < max(2, trials // 3):
            places[:, trial] = generator.random()
        else:
            best = places[rules, scores[:, :trial].argmax(axis=1)]
            places[:, trial] = np.clip(best + _NEAR * generator.standard_normal(len(tops)), 0, 1)
        scores[:, trial] = truth(places[:, trial]) + generator.standard_normal(len(tops))
    return scores, truth(places[rules, scores.argmax(axis=1)])


def claims(layout: tuple[int, int, int], depth: float, same: bool, gain: float, sweeps: int) -> tuple[Array, Array]:
    """Whether each sweep names a rule better (rule 1 where it is): by fresh seeds alone, and by the verdict."""
    rules, trials, seeds = layout
    generator, gains = np.random.default_rng(0), np.zeros(rules)
    gains[1] = gain
    alone, verdict = np.zeros(sweeps, bool), np.zeros(sweeps, bool)
    for sweep in range(sweeps):
        tops = np.full(rules, 0.5) if same else generator.uniform(0.25, 0.75, rules)
        scores, truth = tuned(generator, trials, depth, tops, gains)
        fresh = truth[:, None] + generator.standard_normal((rules, seeds))
        apart = fresh[1:] - fresh[0]
        t = apart.mean(axis=1) / (apart.std(axis=1, ddof=1) / np.sqrt(seeds))
        alone[sweep] = (t > stats.t.isf(FALSE_CLAIMS / (rules - 1), seeds - 1))[: 1 if gain else None].any()
        named: Scores = {str(rule): dict(enumerate(row.tolist())) for rule, row in enumerate(fresh)}
        found = standings(named, "0", {str(rule): list(row) for rule, row in enumerate(scores)})
        verdict[sweep] = any(one.better and (not gain or one.rule == "1") for one in found)
    return alone, verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=400, help="simulated sweeps a cell")
    sweeps = parser.parse_args().sweeps
    table = []
    for layout in LAYOUTS:
        for depth in (0.0, 2.0, 5.0, 20.0):
            for same in (True, False)[: 2 if depth else 1]:
                alone, verdict = claims(layout, depth, same, 0.0, sweeps)
                _, found = claims(layout, depth, same, 3.0, sweeps)
                size = f"{layout[0]} x {layout[1]}, {layout[2]}"
                where = "the same" if same else "its own"
                table.append([size, f"{depth:g} sd", where, percent(alone), percent(verdict), percent(found)])
    headings = ["rules x trials, fresh seeds", "depth", "best place", "fresh alone", "the verdict", "better by 3 sd"]
    print_rows("False claims of a tournament, and found, %", headings, table)


if __name__ == "__main__":
    main()
