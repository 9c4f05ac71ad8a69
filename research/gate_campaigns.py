"""How many changes do campaigns of proposals keep, and how many of them are no gain?

Replays campaigns of 100 proposals with planted gains. The noise is normal, with a correlation of
two configurations on one seed, or that of a study of `real_runs.csv.gz`. Each rule sees only the
scores of the runs that it asks for.

    python -m research.gate_campaigns                       # all scenarios, 1,000 campaigns each
    python -m research.gate_campaigns --campaigns 100 --scenario "gains of 1 SD"
"""

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from dashboards.statistics import gate
from dashboards.statistics.online_levels import lord_level, spending

DATA = Path(__file__).parent / "data"
PROPOSALS = 100
RATE = 0.1
WORTHWHILE = 1.0  # in standard deviations of one score between seeds


@dataclass(frozen=True)
class Noise:
    """Residuals of real trainings, [configurations, seeds], scaled to an SD of 1."""

    name: str
    residuals: np.ndarray


def real_noise() -> list[Noise]:
    """Return the noise of every complete study of `real_runs.csv.gz`, and normal noise."""
    table = pd.read_csv(DATA / "real_runs.csv.gz")
    studies = []
    for name, rows in table.groupby("study"):
        grid = rows.pivot_table(index="configuration", columns="seed", values="score").dropna()
        if grid.shape[1] < 10 or len(grid) < 20:
            continue
        scores = grid.to_numpy()
        # The best half: campaigns start from a baseline that somebody uses.
        means = scores.mean(axis=1)
        scores = scores[means >= np.median(means)]
        residuals = scores - scores.mean(axis=1, keepdims=True)
        residuals *= math.sqrt(scores.shape[1] / (scores.shape[1] - 1))
        residuals = residuals[residuals.std(axis=1) > 0]
        studies.append(Noise(str(name), residuals / residuals.std()))
    return studies


@dataclass
class World:
    """Runs of a campaign: what a configuration scores on a seed, drawn when it is asked for."""

    noise: Noise | None  # None: normal, with a correlation on a seed
    correlation: float
    drift: float  # SD of the slow change of all scores, per proposal
    rng: np.random.Generator
    runs: int = 0
    shared: dict[int, float] = field(default_factory=dict)
    columns: dict[int, int] = field(default_factory=dict)
    offset: float = 0.0

    def run(self, truth: float, row: int, seed: int) -> float:
        """Return one score."""
        self.runs += 1
        if self.noise is None:
            if seed not in self.shared:
                self.shared[seed] = self.rng.standard_normal()
            own = self.rng.standard_normal()
            mixed = math.sqrt(self.correlation) * self.shared[seed]
            return truth + self.offset + mixed + math.sqrt(1 - self.correlation) * own
        residuals = self.noise.residuals
        if seed not in self.columns:
            self.columns[seed] = int(self.rng.integers(residuals.shape[1]))
        # A seed is one column for all configurations; the rows of a configuration vary, since
        # ten seeds are too few for a campaign.
        return truth + self.offset + float(residuals[row, self.columns[seed]])

    def next_proposal(self) -> None:
        """Let all scores change slowly."""
        self.offset += self.drift * self.rng.standard_normal()

    def row(self) -> int:
        """Return the noise of a new configuration."""
        return 0 if self.noise is None else int(self.rng.integers(len(self.noise.residuals)))


@dataclass(frozen=True)
class Kept:
    """One keep: the true gain over the baseline at that time."""

    gain: float


Rule = Callable[[World, Iterator[float], float], list[Kept]]


class Arm:
    """A configuration and its runs."""

    def __init__(self, world: World, truth: float) -> None:
        self.world, self.truth, self.row = world, truth, world.row()
        self.runs: dict[int, float] = {}

    def ensure(self, seeds: list[int]) -> None:
        """Run the seeds that are not there yet."""
        for seed in seeds:
            if seed not in self.runs:
                self.runs[seed] = self.world.run(self.truth, self.row, seed)

    def mean(self) -> float:
        """Return the mean score."""
        return float(np.mean(list(self.runs.values())))


def with_seeds(seeds: int, is_kept: Callable[[World, Arm, Arm], bool]) -> Rule:
    """Return the rule that runs each proposal on so many seeds and compares it with the baseline,
    which is the last proposal that was kept.
    """

    def rule(world: World, gains: Iterator[float], _: float) -> list[Kept]:
        kept = []
        places = list(range(seeds))
        baseline = Arm(world, 0.0)
        baseline.ensure(places)
        for gain in gains:
            world.next_proposal()
            proposal = Arm(world, baseline.truth + gain)
            proposal.ensure(places)
            if is_kept(world, proposal, baseline):
                kept.append(Kept(gain))
                baseline = proposal
        return kept

    return rule


def fixed(seeds: int, threshold: float) -> Rule:
    """Return the rule that keeps what exceeds the baseline's mean by ``threshold`` (in SD)."""

    def is_kept(world: World, proposal: Arm, baseline: Arm) -> bool:
        return proposal.mean() - baseline.mean() > threshold

    return with_seeds(seeds, is_kept)


def bootstrapped(seeds: int) -> Rule:
    """Return the rule that keeps a proposal if the 95 % bootstrap interval of the difference of
    means excludes 0.
    """

    def is_kept(world: World, proposal: Arm, baseline: Arm) -> bool:
        ours = np.array(list(proposal.runs.values()))
        theirs = np.array(list(baseline.runs.values()))
        draws = world.rng.integers(seeds, size=(2, 400, seeds))
        means = ours[draws[0]].mean(axis=1) - theirs[draws[1]].mean(axis=1)
        return float(np.quantile(means, 0.025)) > 0

    return with_seeds(seeds, is_kept)


def gated(
    levels: str = "lord", *, first: int = 8, most: int = 32, worthwhile: float = WORTHWHILE
) -> Rule:
    """Return loptune's gate."""

    def rule(world: World, gains: Iterator[float], rate: float) -> list[Kept]:
        kept: list[Kept] = []
        places: list[int] = []
        start = 0
        baseline = Arm(world, 0.0)
        baseline.ensure(list(range(first)))
        place = 0  # of the baseline in the sums
        variations = [(0.0, 0)]
        covariations: list[tuple[float, int]] = []
        for number, gain in enumerate(gains, start=1):
            world.next_proposal()
            proposal = Arm(world, baseline.truth + gain)
            level = level_of(levels, places, number, rate)
            variations.append((0.0, 0))
            covariations.append((0.0, 0))
            count = 1
            while True:
                seeds = list(range(start, start + count))
                baseline.ensure(seeds)
                proposal.ensure(seeds)
                variations[-1] = gate.variation(proposal.runs)
                variations[place] = gate.variation(baseline.runs)
                covariations[-1] = gate.covariation(proposal.runs, baseline.runs)
                model = gate.pooled_model(variations, covariations)
                assert model is not None
                said = gate.answer(
                    proposal.runs,
                    baseline.runs,
                    model=model,
                    worthwhile=worthwhile,
                    level=level,
                    most_seeds=most,
                )
                if said.outcome != "more":
                    break
                count = said.next_seeds
            if said.outcome == "keep":
                kept.append(Kept(gain))
                places.append(number)
                start += 1000
                baseline = Arm(world, proposal.truth)
                baseline.row = proposal.row
                baseline.ensure(list(range(start, start + first)))
                place = len(variations)
                variations.append((0.0, 0))
        return kept

    return rule


def level_of(levels: str, kept: list[int], number: int, rate: float) -> float:
    """Return the level of a proposal by the candidates that were compared."""
    if levels == "lord":
        return lord_level(kept, number, rate)
    if levels == "lond":
        return float(rate * spending()[number - 1] * (len(kept) + 1))
    if levels == "spending":  # of the whole rate, whatever is kept
        return float(rate * spending()[number - 1])
    return float(levels)  # a fixed level for each proposal


SCENARIOS = {
    "no-ops": ((0.0,), 0.0),
    "gains of 1 SD": ((1.0,), 0.0),
    "gains of 2 SD": ((2.0,), 0.0),
    "gains of 3 SD": ((3.0,), 0.0),
    "gains of 1 SD, drift": ((1.0,), 0.05),
}


def proposals(gains: tuple[float, ...], rng: np.random.Generator) -> list[float]:
    """Return the true gains of a campaign: one in ten is a gain, the others change nothing."""
    return [float(rng.choice(gains)) if rng.random() < 0.1 else 0.0 for _ in range(PROPOSALS)]


RULES: dict[str, Rule] = {
    "greedy, one seed": fixed(1, 0.0),
    "two sigma, one seed": fixed(1, 2.0),
    "three seeds each": fixed(3, 0.0),
    "three seeds, +1.0 SD": fixed(3, 1.0),
    "three seeds, +1.5 SD": fixed(3, 1.5),
    "three seeds, +2 SD": fixed(3, 2.0),
    "six seeds, +0.8 SD": fixed(6, 0.8),
    "six seeds, +1.0 SD": fixed(6, 1.0),
    "six seeds, +1.2 SD": fixed(6, 1.2),
    "bootstrap, five seeds": bootstrapped(5),
    "gate, LORD++": gated(),
    "gate, LOND": gated("lond"),
    "gate, alpha spending": gated("spending"),
    "gate, level .01 each": gated("0.01"),
}


def replay(task: tuple[str, str, str | None, float, int]) -> dict[str, float]:
    """Return what a rule kept in one campaign."""
    rule, scenario, noise, correlation, seed = task
    rng = np.random.default_rng(seed)
    gains, drift = SCENARIOS[scenario]
    studies = {study.name: study for study in real_noise()} if noise else {}
    world = World(studies.get(noise or ""), correlation, drift, rng)
    planted = proposals(gains, rng)
    kept = RULES[rule](world, iter(planted), RATE)
    good = sum(one.gain > 0 for one in kept)
    false = len(kept) - good
    return {
        "kept": good,
        "of": sum(gain > 0 for gain in planted),
        "false": false,
        "fdp": false / max(len(kept), 1),
        "seeds": world.runs,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaigns", type=int, default=1000)
    parser.add_argument("--scenario", nargs="*", default=list(SCENARIOS))
    parser.add_argument("--rules", nargs="*", default=list(RULES))
    parser.add_argument("--noise", default=None)
    parser.add_argument("--correlation", type=float, default=0.5)
    arguments = parser.parse_args()
    for scenario in arguments.scenario:
        print(
            f"\n{scenario}, noise {arguments.noise or 'normal'}, "
            f"correlation {arguments.correlation}"
        )
        for rule in arguments.rules:
            tasks = [
                (rule, scenario, arguments.noise, arguments.correlation, seed)
                for seed in range(arguments.campaigns)
            ]
            rows = pd.DataFrame(map(replay, tasks))
            found = rows["kept"].sum() / max(rows["of"].sum(), 1)
            print(
                f"  {rule:24} kept {found:5.1%}  false {rows['false'].mean():6.2f}  "
                f"false of kept {rows['fdp'].mean():5.1%}  seeds {rows['seeds'].mean():6.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
