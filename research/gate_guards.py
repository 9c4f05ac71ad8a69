"""Do guards change how often campaigns keep changes that are not improvements, and are harmful
gains kept?

Replays campaigns of proposals with planted gains by `gate.answer`, the decision that the gate uses,
with and without a guard. A change may lose a multiple of the guard's margin. Noise is normal: two
configurations are correlated on the same seed, and so are score and guard within a run. The
baseline runs again only when a change is kept, and chains are not re-checked.

    python -m research.gate_guards --campaigns 250
"""

import argparse
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dashboards.statistics import gate
from dashboards.statistics.campaign_noise import Runs, SeedModel, covariation, pooled_model
from dashboards.statistics.campaign_noise import variation as variation_of
from dashboards.statistics.online_levels import lord_level

Floats = NDArray[np.float64]

RATE = 0.1
WORTHWHILE = 1.0  # in SD of the score between seeds
MARGIN = 1.0  # in SD of the guard between seeds
CORRELATION = 0.5  # correlation of two configurations on the same seed
SHARED = 0.5  # correlation of score and guard within a run
FIRST, MOST = 8, 32
SCORE, GUARD = 0, 1


@dataclass(frozen=True)
class Scenario:
    """The gains and losses of a campaign's proposals."""

    name: str
    gain: float = 0.0  # gain of the proposals that have one [SD]
    gains_in: float = 0.1  # fraction of the proposals that have a gain
    loss: float = 0.0  # loss of every proposal, in margins
    harmful_in: float = 0.0  # fraction of the gains that lose `harm` margins
    harm: float = 2.0
    guarded: bool = True


SCENARIOS = (
    Scenario("no gains, no guard", guarded=False),
    Scenario("no gains"),
    Scenario("no gains, all lose the margin", loss=1.0),
    Scenario("1 SD, no guard", gain=1.0, guarded=False),
    Scenario("1 SD", gain=1.0),
    Scenario("2 SD, half lose twice the margin", gain=2.0, gains_in=0.4, harmful_in=0.5),
    Scenario("2 SD, half lose the margin", gain=2.0, gains_in=0.4, harmful_in=0.5, harm=1.0),
)


@dataclass
class Noise:
    """The runs of a campaign by configuration and seed. A run is drawn when it is requested."""

    rng: np.random.Generator
    seeds: dict[int, Floats] = field(default_factory=dict)  # seed -> [score, guard]

    def run(self, seed: int, mean: Floats) -> Floats:
        """Return score and guard of a configuration on a seed."""
        if seed not in self.seeds:
            self.seeds[seed] = self._pair()
        own = self._pair()
        noise = math.sqrt(CORRELATION) * self.seeds[seed] + math.sqrt(1 - CORRELATION) * own
        run: Floats = mean + noise
        return run

    def _pair(self) -> Floats:
        first, second = self.rng.standard_normal(2)
        return np.array([first, SHARED * first + math.sqrt(1 - SHARED**2) * second])


Arm = dict[int, Floats]  # seed -> [score, guard]


def column(arm: Arm, metric: int) -> Runs:
    """Return the scores of a configuration by seed, or its values of the guard."""
    return {seed: float(run[metric]) for seed, run in arm.items()}


@dataclass
class Sums:
    """Sums over the finished configurations of a campaign, for the seed model of one metric."""

    metric: int
    variations: list[tuple[float, int]] = field(default_factory=list)
    covariations: list[tuple[float, int]] = field(default_factory=list)

    def add(self, arm: Arm, baseline: Arm | None = None) -> None:
        """Add a finished configuration, and the baseline with which it was compared."""
        runs = column(arm, self.metric)
        self.variations = [_sum([*self.variations, variation_of(runs)])]
        if baseline is not None:
            pair = covariation(runs, column(baseline, self.metric))
            self.covariations = [_sum([*self.covariations, pair])]

    def model(self, proposal: Arm, baseline: Arm) -> SeedModel:
        """Return the model from all finished configurations, a proposal and its baseline."""
        runs, base = column(proposal, self.metric), column(baseline, self.metric)
        model = pooled_model(
            [*self.variations, variation_of(runs), variation_of(base)],
            [*self.covariations, covariation(runs, base)],
        )
        assert model is not None
        return model


def _sum(parts: list[tuple[float, int]]) -> tuple[float, int]:
    return math.fsum(part[0] for part in parts), sum(part[1] for part in parts)


@dataclass
class Outcome:
    """The changes that a campaign kept."""

    good: int = 0
    false: int = 0
    harmful: int = 0
    planted: int = 0
    harmful_planted: int = 0
    harmful_level: float = 0.0  # sum of the levels of harmful proposals
    runs: int = 0


def replay(scenario: Scenario, proposals: int, rng: np.random.Generator) -> Outcome:
    """Return what a campaign keeps."""
    noise = Noise(rng)
    outcome = Outcome()
    sums = Sums(SCORE), Sums(GUARD)
    mean = np.zeros(2)
    kept: list[int] = []
    first_seed = 0
    baseline = {seed: noise.run(seed, mean) for seed in range(FIRST)}
    outcome.runs += FIRST
    for number in range(1, proposals + 1):
        is_gain = scenario.gain > 0 and rng.random() < scenario.gains_in
        is_harmful = is_gain and rng.random() < scenario.harmful_in
        loss = scenario.harm if is_harmful else scenario.loss
        change = np.array([scenario.gain if is_gain else 0.0, -loss * MARGIN])
        level = lord_level(kept, number, RATE)
        proposal: Arm = {}
        asked: int | None = 1
        while asked is not None:
            for seed in range(first_seed, first_seed + asked):
                for arm, truth in ((proposal, mean + change), (baseline, mean)):
                    if seed not in arm:
                        arm[seed] = noise.run(seed, truth)
                        outcome.runs += 1
            answer = decide(proposal, baseline, sums, level, guarded=scenario.guarded)
            asked = answer.next_seeds
        for each in sums:
            each.add(proposal, baseline)
        outcome.planted += is_gain and not is_harmful
        outcome.harmful_planted += is_harmful
        outcome.harmful_level += level * is_harmful
        if answer.outcome == "keep":
            kept.append(number)
            outcome.good += is_gain and not is_harmful
            outcome.harmful += is_harmful
            outcome.false += not is_gain
            for each in sums:
                each.add(baseline)
            mean = mean + change
            first_seed += 1000
            seeds = range(first_seed, first_seed + FIRST)
            baseline = {seed: noise.run(seed, mean) for seed in seeds}
            outcome.runs += FIRST
    return outcome


def decide(
    proposal: Arm, baseline: Arm, sums: tuple[Sums, Sums], level: float, *, guarded: bool
) -> gate.Answer:
    """Return the gate's interim decision."""
    guards = []
    if guarded:
        guard = gate.GuardRuns(
            metric="guard",
            margin=MARGIN,
            sign=1,
            proposal=column(proposal, GUARD),
            baseline=column(baseline, GUARD),
            model=sums[GUARD].model(proposal, baseline),
        )
        guards.append(guard)
    return gate.answer(
        column(proposal, SCORE),
        column(baseline, SCORE),
        model=sums[SCORE].model(proposal, baseline),
        worthwhile=WORTHWHILE,
        level=level,
        most_seeds=MOST,
        guards=guards,
    )


def print_row(name: str, outcomes: list[Outcome]) -> None:
    """Print one scenario."""
    false = [each.false / max(each.good + each.harmful + each.false, 1) for each in outcomes]
    error = float(np.std(false)) / math.sqrt(len(false))
    found = sum(each.good for each in outcomes) / max(sum(each.planted for each in outcomes), 1)
    some = float(np.mean([each.false > 0 for each in outcomes]))
    harmful = sum(each.harmful_planted for each in outcomes)
    text = (
        f"{name:34} found {found:6.1%}  false of kept {np.mean(false):5.1%} ± {error:.1%}  "
        f"some false {some:5.1%}  runs {np.mean([each.runs for each in outcomes]):5.0f}"
    )
    if harmful:
        count = sum(each.harmful for each in outcomes)
        level = sum(each.harmful_level for each in outcomes) / harmful
        text += f"  harmful kept {count} of {harmful} ({count / harmful:.2%}, level {level:.2%})"
    print(text, flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaigns", type=int, default=250)
    parser.add_argument("--proposals", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for scenario in SCENARIOS:
        outcomes = []
        for campaign in range(arguments.campaigns):
            rng = np.random.default_rng((arguments.seed, campaign))
            outcomes.append(replay(scenario, arguments.proposals, rng))
        print_row(scenario.name, outcomes)


if __name__ == "__main__":
    main()
