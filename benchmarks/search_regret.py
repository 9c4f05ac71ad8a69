"""How good the searcher's proposals are with four trials at a time: regret against Optuna's own TPE.

    python -m benchmarks.search_regret --repeats 40      # about two minutes on one core

A noisy function of alpha, eta and a choice is searched with 40 configurations, four trials at the same time; every
configuration is tried with each of the seeds, which are good or bad for all configurations alike, and a trial that
ends makes room for the next. The regret is that of
the configuration with the best mean, in the noise-free score. `plain` is Optuna's TPESampler asked in the same
way; `before` saw nothing of a configuration until all its seeds had ended, and asked five times before it drew at
random. `lost` counts proposals that are no choice of the sampler: points tried before, or random ones instead.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import optuna

from benchmarks.tables import mean, print_rows
from sweep.search import proposals, study
from sweep.search.history import Configuration, Result
from sweep.search.study import ask
from sweep.space.file import resolve_space
from sweep.space.points import Parameters, Space, fingerprint
from sweep.space.spec import SweepSpec
from trainer.config.yaml_document import YamlDocument

CONFIGURATIONS = 40
AT_A_TIME = 4
NOISE = 0.05  # of every trial
SEED_NOISE = 0.1  # of a seed, the same for all configurations: 0.8 of the variance between seeds
ADVANTAGES = {"choice": ["grpo", "reinforce_plus_plus"]}
SPACES: dict[str, dict[str, Any]] = {
    "continuous": {
        "algorithm.ar_alpha": {"uniform": [0.0, 1.0]},
        "algorithm.lopti_eta": {"uniform": [0.0, 0.9]},
        "algorithm.advantage": ADVANTAGES,
    },
    "small": {
        "algorithm.ar_alpha": {"quniform": [0.0, 1.0, 0.1]},
        "algorithm.lopti_eta": {"choice": [0.0, 0.3, 0.5, 0.7]},
        "algorithm.advantage": ADVANTAGES,
    },
    "finite": {
        "algorithm.ar_alpha": {"quniform": [0.0, 1.0, 0.1]},
        "algorithm.lopti_eta": {"quniform": [0.0, 0.9, 0.1]},
        "algorithm.advantage": ADVANTAGES,
    },
}
Proposer = Callable[[SweepSpec, Space, list[Configuration]], tuple[Parameters, bool]]  # the point; whether lost


def truth(point: Parameters) -> float:
    """1 at alpha 0.3, eta 0.5 and grpo, with a second, lower peak."""
    alpha, eta = float(point["algorithm.ar_alpha"]), float(point["algorithm.lopti_eta"])
    first = math.exp(-(((alpha - 0.3) / 0.2) ** 2) - ((eta - 0.5) / 0.3) ** 2)
    second = 0.7 * math.exp(-(((alpha - 0.8) / 0.15) ** 2) - ((eta - 0.2) / 0.2) ** 2)
    return max(first, second) - 0.15 * (point["algorithm.advantage"] != "grpo")


def plain(spec: SweepSpec, space: Space, found: list[Configuration]) -> tuple[Parameters, bool]:
    seed = int(np.random.SeedSequence([spec.search.seed, len(found)]).generate_state(1)[0])
    point, _ = ask(spec, space, finished(spec, found), optuna.samplers.TPESampler(seed=seed))
    mark = fingerprint(space.resolve(point, spec.base))
    return point, any(one.fingerprint == mark for one in found)


def before(spec: SweepSpec, space: Space, found: list[Configuration]) -> tuple[Parameters, bool]:
    with mock.patch.object(study, "EI_CANDIDATES", GREEDY), mock.patch.object(proposals, "SAMPLER_ATTEMPTS", 5):
        return now(spec, space, finished(spec, found))


def now(spec: SweepSpec, space: Space, found: list[Configuration]) -> tuple[Parameters, bool]:
    with mock.patch.object(proposals, "make_sampler", wraps=proposals.make_sampler) as asked:
        point, _ = proposals.propose(spec, space, found)
    assert point is not None, "the space is larger than the search"
    return point, asked.call_args.args[0].sampler == "random"


class _Greedy(int):
    """24 candidates at every attempt."""

    def __rshift__(self, attempt: int) -> int:
        return int(self)


GREEDY = _Greedy(24)


def finished(spec: SweepSpec, found: list[Configuration]) -> list[Configuration]:
    """The configurations without the results of those that still run."""
    return [one if len(one.results) == len(spec.seeds) else replace(one, results={}) for one in found]


def regret(spec: SweepSpec, proposer: Proposer) -> tuple[float, float]:
    """Regret of one search, and its share of lost proposals."""
    space, noise = Space(spec.parameters), np.random.default_rng([spec.search.seed, 1])
    effects = SEED_NOISE * noise.standard_normal(len(spec.seeds))
    ends = np.random.default_rng([spec.search.seed, 2])
    found: list[Configuration] = []
    waiting: list[tuple[int, int]] = []
    running: list[tuple[int, int]] = []
    lost = 0
    while len(found) < CONFIGURATIONS or waiting or running:
        while len(running) < AT_A_TIME and (waiting or len(found) < CONFIGURATIONS):
            if not waiting:
                point, missed = proposer(spec, space, found)
                resolved = space.resolve(point, spec.base)
                mark = fingerprint(resolved)
                lost += missed
                found.append(Configuration(len(found), "search", point, resolved, mark, {}, 0.0))
                waiting = [(found[-1].number, seed) for seed in spec.seeds]
            running.append(waiting.pop(0))
        number, seed = running.pop(int(ends.integers(len(running))))
        score = truth(found[number].parameters) + effects[seed] + NOISE * noise.standard_normal()
        results = {**found[number].results, seed: Result("COMPLETE", score, 1, "", 0.0)}
        found[number] = replace(found[number], results=results)

    def average(one: Configuration) -> float:
        return float(np.mean([result.score for result in one.results.values() if result.score is not None]))

    best = max(found, key=average)
    points = space.grid(lambda parameter: parameter.options or []) if space.is_finite else []
    top = max(map(truth, points), default=1.0)
    return top - truth(best.parameters), lost / CONFIGURATIONS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40, help="searches a cell (default: 40)")
    parser.add_argument(
        "spaces", nargs="*", choices=[*SPACES, []], default=list(SPACES), help="which (default: all)"
    )
    arguments = parser.parse_args()
    repeats = arguments.repeats
    rows = []
    for kind in arguments.spaces or SPACES:
        parameters = SPACES[kind]
        for seeds in (1, 3):
            outcomes: dict[str, list[tuple[float, float]]] = {}
            for proposer in (plain, before, now):
                outcomes[proposer.__name__] = [
                    regret(space_of(parameters, seeds, seed), proposer) for seed in range(repeats)
                ]
            base = np.array(outcomes["plain"])[:, 0]
            for name, found in outcomes.items():
                regrets, lost = np.array(found).T
                ratio = f"{regrets.mean() / base.mean():.2f}"
                told = [mean(regrets, 4), ratio, mean(regrets - base, 4), mean(100 * lost, 1)]
                rows.append([kind, str(seeds), name, *told])
    headings = ["space", "seeds", "proposer", "regret", "to plain", "difference to plain", "lost, %"]
    print_rows("Regret after 40 configurations, four trials at a time", headings, rows)


def space_of(parameters: dict[str, Any], seeds: int, seed: int) -> SweepSpec:
    data = {
        "name": "regret",
        "trainer": "tiny_kk",
        "parameters": parameters,
        "seeds": list(range(seeds)),
        "search": {"sampler": "tpe", "configurations": CONFIGURATIONS, "seed": seed},
    }
    return resolve_space(YamlDocument(data, {}, "regret"), Path.cwd())


if __name__ == "__main__":
    main()
