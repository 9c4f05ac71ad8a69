"""How often does a tournament with equal budgets call a rule better that is not, and how often does
it detect a better rule?

    python -m research.tournament_errors --sweeps 400

The score of a rule is a parabola in each of its parameters on [0, 1] (the logarithm of a learning
rate), which falls by `depth` standard deviations between seeds from its maximum to the far end. All
rules are equally good at their best settings, which are the same for all rules or differ. A rule is
tuned on one seed: a third of its trials are at random settings that are the same for all rules, and
each later trial is near the rule's best one so far. Then the best setting of each rule runs on
fresh seeds. Each rate is printed with its standard error.

    fresh alone     a paired t test on fresh seeds, corrected for the number of rules
    the verdict     `dashboards.statistics.tournament`, which includes tuning variance
    better by 3 sd  how often the verdict detects a rule that is better by this, at its best

The second table is for rules that tune unequal numbers of parameters, have unequal budgets, or have
trials that fail.
"""

import argparse
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dashboards.statistics.levels import SIGNIFICANCE_LEVEL
from dashboards.statistics.seed_noise import Scores
from dashboards.statistics.tournament import Tuning, compare_rules
from research.tables import percent, print_rows

Array = NDArray[np.float64]
_NEAR = 0.15  # standard deviation of proposals around the best so far
_SEEDS = 8  # number of fresh seeds of each rule


@dataclass(frozen=True)
class Layout:
    """How the rules of a tournament are tuned; the baseline is the first rule."""

    parameters: tuple[int, ...]
    trials: tuple[int, ...]
    failing: float = 0.0  # fraction of tuning trials
    depth: float = 0.0
    same: bool = True  # whether all rules have the same best setting
    gain: float = 0.0  # improvement of the second rule over the others, at its best
    seeds: int = _SEEDS

    @property
    def name(self) -> str:
        """The layout as a cell of a table."""
        rules = zip(self.parameters, self.trials, strict=True)
        failed = f", {self.failing:.0%} fail" if self.failing else ""
        return "; ".join(f"{parameters} in {trials}" for parameters, trials in rules) + failed


ALIKE = [
    Layout((1,) * rules, (trials,) * rules) for rules, trials in [(2, 8), (2, 12), (7, 12), (7, 24)]
]
UNLIKE = [
    Layout((1, 1), (12, 24)),
    Layout((1, 1), (24, 8)),
    Layout((1, 2), (12, 24)),
    Layout((1, 2), (24, 24)),
    Layout((2, 2), (24, 24)),
    Layout((2, 1), (24, 24)),
    Layout((1, 3), (24, 24)),
    Layout((1, 1, 2, 2, 3), (24,) * 5),
    Layout((1, 1), (16, 16), failing=0.25),
    Layout((1, 2), (36, 36), failing=0.25),
]


def tuned(
    generator: np.random.Generator, first: Array, trials: int, top: Array, layout: Layout
) -> tuple[Array, float]:
    """Return the scores of a rule's complete tuning trials, and the true score of the chosen
    setting minus that of the rule's best setting.

    Args:
        generator: random generator of the proposals and the noise.
        first: random settings with which every rule starts, [T, P].
        trials: number of trials of this rule.
        top: the rule's best setting, [P].
        layout: depth, and fraction of failing trials.
    """
    startup = max(2, trials // 3)
    places = np.empty((trials, len(top)))
    scores = np.full(trials, -np.inf)
    losses = np.empty(trials)
    for trial in range(trials):
        best = places[scores[:trial].argmax()] if trial else None
        if trial < startup or best is None:
            places[trial] = first[trial, : len(top)]
        else:
            places[trial] = np.clip(best + _NEAR * generator.standard_normal(len(top)), 0, 1)
        losses[trial] = (
            layout.depth * (((places[trial] - top) / np.maximum(top, 1 - top)) ** 2).sum()
        )
        if generator.random() >= layout.failing:
            scores[trial] = generator.standard_normal() - losses[trial]
    return scores[np.isfinite(scores)], -float(losses[scores.argmax()])


def claims(layout: Layout, sweeps: int) -> tuple[Array, Array, float]:
    """Return whether each sweep calls a rule better (if there is a gain: the second rule), by fresh
    seeds alone and by the verdict, and the fraction of comparisons that are not made.
    """
    rules = len(layout.trials)
    generator = np.random.default_rng(0)
    alone = np.zeros(sweeps, bool)
    verdict = np.zeros(sweeps, bool)
    refused = 0
    for sweep in range(sweeps):
        first = generator.random((max(layout.trials), max(layout.parameters)))
        fresh = []
        tunings = {}
        for rule, (parameters, trials) in enumerate(
            zip(layout.parameters, layout.trials, strict=True)
        ):
            top = (
                np.full(parameters, 0.5)
                if layout.same
                else generator.uniform(0.25, 0.75, parameters)
            )
            scores, truth = tuned(generator, first, trials, top, layout)
            gain = layout.gain * (rule == 1)
            tunings[str(rule)] = Tuning([*(scores + gain)], parameters)
            fresh.append(truth + gain + generator.standard_normal(layout.seeds))
        apart = np.array(fresh[1:]) - fresh[0]
        t = apart.mean(axis=1) / (apart.std(axis=1, ddof=1) / np.sqrt(layout.seeds))
        alone[sweep] = (t > stats.t.isf(SIGNIFICANCE_LEVEL / (rules - 1), layout.seeds - 1))[
            : 1 if layout.gain else None
        ].any()
        named: Scores = {str(rule): dict(enumerate(row.tolist())) for rule, row in enumerate(fresh)}
        compared = compare_rules(named, "0", tunings)
        verdict[sweep] = any(
            result.better and (not layout.gain or result.rule == "1") for result in compared
        )
        refused += sum(result.refusal is not None for result in compared)
    return alone, verdict, refused / (sweeps * (rules - 1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweeps", type=int, default=400, help="simulated sweeps per cell")
    sweeps = parser.parse_args().sweeps
    headings = ["depth", "best place", "fresh alone", "the verdict", "better by 3 sd", "refused"]
    for title, layouts, depths in [
        ("Rules that tune one parameter each", ALIKE, (0.0, 2.0, 5.0, 20.0)),
        (
            "Unequal rules: parameters in trials of each, the baseline first",
            UNLIKE,
            (2.0, 5.0, 20.0),
        ),
    ]:
        table = []
        for layout in layouts:
            for depth in depths:
                for same in (True, False)[: 2 if depth else 1]:
                    cell = replace(layout, depth=depth, same=same)
                    alone, verdict, refused = claims(cell, sweeps)
                    _, detected, _ = claims(replace(cell, gain=3.0), sweeps)
                    where = "the same" if same else "its own"
                    rates = [
                        percent(alone),
                        percent(verdict),
                        percent(detected),
                        f"{100 * refused:.0f}",
                    ]
                    table.append([layout.name, f"{depth:g} sd", where, *rates])
        print_rows(
            f"{title}: false claims of a tournament, and found, %", ["layout", *headings], table
        )


if __name__ == "__main__":
    main()
