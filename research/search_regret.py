"""How good is the result of a search with 4 to 32 trials? Prints the regret of each sampler on
several surfaces.

    python -m research.search_regret --repeats 30      # about an hour on one core

A noisy function is searched with two concurrent trials, on one seed, or on three seeds with a third
as many configurations. The configuration with the best mean is chosen. Regret is the difference
between the noise-free scores of the best point and the chosen one, divided by the difference
between the best point and the mean of all points: a random point has a regret of 100%. The surface
`measured` interpolates accuracies of the tiny model at 24 points, and has the noise of its seeds.
The other surfaces are artificial: two peaks; the same peaks on a grid of 220 points; a learning
rate with a cliff, alpha and eta; a learning rate with an integer number of epochs; a switch with
its own parameter.

    python -m research.search_regret --failures --repeats 30

compares the values that a sampler can get for failed configurations. It uses a score that rises
with the learning rate up to a cliff, beyond which trials diverge (10, 30 or 60% of the space), and
a score for which 20% of the trials fail independently of their settings.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from loptune.yaml_document import YamlDocument
from research.tables import mean, print_rows
from sweep.search import study
from sweep.search.history import Configuration, failed_by_settings, open_trial
from sweep.space.file import resolve_space
from sweep.space.parameters import ParameterSpec
from sweep.space.points import Parameters, Space, fingerprint
from sweep.space.spec import SweepSpec

SIZES = (4, 8, 16, 32)  # numbers of trials
AT_A_TIME = 2
ALPHA = "algorithm.ar_alpha"
ETA = "algorithm.lopti_eta"
LR = "optim.lr"
EPOCHS = "algorithm.update_epochs"
ADVANTAGES = {"choice": ["grpo", "reinforce_plus_plus"]}
# Accuracy of `trainer run tiny_kk max_steps=20` (mean of steps 15 and 20) by (alpha, eta) and
# learning rate, on two seeds at 3e-4 and 1e-3, and on one seed at the other rates.
RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
ACCURACIES = {
    (0.0, 0.0): (0.500, 0.530, 0.571, 0.518, 0.203, 0.0),
    (0.5, 0.0): (0.494, 0.538, 0.550, 0.487, 0.163, 0.0),
    (0.0, 0.5): (0.507, 0.539, 0.553, 0.470, 0.126, 0.0),
    (0.5, 0.5): (0.500, 0.537, 0.539, 0.382, 0.092, 0.0),
}
SAMPLERS: dict[str, dict[str, Any]] = {
    "random": {"sampler": "random"},
    "TPE, 10 random": {"sampler": "tpe"},
    "TPE, 4 random": {"sampler": "tpe", "startup": 4},
    "GP, 4 random": {"sampler": "gp", "startup": 4},
}


def peaks(point: Parameters) -> float:
    """Return a score that is 1 at alpha 0.3, eta 0.5 and grpo, and has a second, lower peak."""
    alpha = float(point[ALPHA])
    eta = float(point.get(ETA, 0.0))
    first = math.exp(-(((alpha - 0.3) / 0.2) ** 2) - ((eta - 0.5) / 0.3) ** 2)
    second = 0.7 * math.exp(-(((alpha - 0.8) / 0.15) ** 2) - ((eta - 0.2) / 0.2) ** 2)
    return max(first, second) - 0.15 * (point.get("algorithm.advantage", "grpo") != "grpo")


def rate(point: Parameters) -> float:
    """Return a score that is 1 at a learning rate of 3e-4. At three times this rate nothing is
    learned, and little at a tenth of it.
    """
    distance = math.log10(float(point[LR]) / 3e-4)
    tuned = max(0.0, 1 - distance**2) if distance < 0.4 else 0.0
    return tuned * (1 - 0.5 * float(point[ALPHA])) * (1 - (float(point[ETA]) - 0.5) ** 2)


def epochs(point: Parameters) -> float:
    """Return a score that is 1 at a learning rate of 3e-4 with two epochs; with twice the epochs,
    half the learning rate is best.
    """
    octaves = math.log2(float(point[LR]) * float(point[EPOCHS]) / 6e-4)
    return math.exp(-((octaves / 2) ** 2)) - 0.1 * abs(float(point[EPOCHS]) - 2)


def measured(point: Parameters) -> float:
    """Return the measured accuracy, interpolated linearly in alpha, eta and the logarithm of the
    learning rate.
    """
    alpha = float(point[ALPHA])
    eta = float(point[ETA])
    rate = np.log(float(point[LR]))
    return sum(
        (1 - 2 * abs(alpha - a))
        * (1 - 2 * abs(eta - e))
        * float(np.interp(rate, np.log(RATES), row))
        for (a, e), row in ACCURACIES.items()
    )


@dataclass(frozen=True)
class Surface:
    """A function to search."""

    truth: Callable[[Parameters], float]  # noise-free score; NaN if a trial diverges
    parameters: dict[str, Any]
    noise: float = 0.1  # standard deviation of a trial
    failing: float = 0.0  # probability that a trial fails independently of its settings


UNIT = {"uniform": [0.0, 1.0]}
SURFACES = {
    "peaks": Surface(
        peaks, {ALPHA: UNIT, ETA: {"uniform": [0.0, 0.9]}, "algorithm.advantage": ADVANTAGES}
    ),
    "grid": Surface(
        peaks,
        {
            ALPHA: {"choice": [number / 10 for number in range(11)]},
            ETA: {"choice": [number / 10 for number in range(10)]},
            "algorithm.advantage": ADVANTAGES,
        },
    ),
    "rate": Surface(
        rate, {LR: {"loguniform": [1e-5, 1e-2]}, ALPHA: UNIT, ETA: {"uniform": [0.0, 0.9]}}
    ),
    "epochs": Surface(epochs, {LR: {"loguniform": [1e-5, 1e-2]}, EPOCHS: {"int": [1, 8]}}),
    "switch": Surface(
        peaks,
        {
            ALPHA: UNIT,
            "lopti": {"choice": [False, True]},
            ETA: {"uniform": [0.1, 0.9], "when": {"lopti": True}, "else": 0.0},
        },
    ),
    "measured": Surface(
        measured,
        {
            LR: {"loguniform": [RATES[0], RATES[-1]]},
            ALPHA: {"uniform": [0.0, 0.5]},
            ETA: {"uniform": [0.0, 0.5]},
        },
        0.02,
    ),
}


def cliff(fraction: float) -> Callable[[Parameters], float]:
    """Return a score that rises to 1 with the learning rate, up to a cliff, which is higher for a
    larger alpha.
    """

    def truth(point: Parameters) -> float:
        height = (math.log10(float(point[LR])) + 6) / 4  # 0 to 1
        edge = 1 - fraction + 0.1 * (float(point[ALPHA]) - 0.5)
        if height > edge:
            return math.nan
        return height / (1.05 - fraction) - 0.3 * (float(point[ALPHA]) - 0.5) ** 2

    return truth


CLIFF_SPACE = {LR: {"loguniform": [1e-6, 1e-2]}, ALPHA: UNIT}
FAILURES = {
    "10% diverge": Surface(cliff(0.1), CLIFF_SPACE),
    "30% diverge": Surface(cliff(0.3), CLIFF_SPACE),
    "60% diverge": Surface(cliff(0.6), CLIFF_SPACE),
    "20% of trials fail": Surface(cliff(0.1), CLIFF_SPACE, failing=0.2),
}
FAILURE_SIZES = (10, 20)  # numbers of trials
# The value that a sampler gets for a configuration that failed because of its settings: none, the
# median or the worst score so far, the median until a quarter have failed and then the worst
# (loptune's rule), or the worst score with a violated constraint.
LESSONS = ("ignored", "median", "worst", "capped", "constraint")
RULE = "capped"
History = Callable[[SweepSpec, Space, Sequence[Configuration]], list[FrozenTrial]]


def told_as(lesson: str) -> History:
    """Return a variant of `study.sampler_trials` with another value for failed configurations."""

    def history(
        spec: SweepSpec, space: Space, configurations: Sequence[Configuration]
    ) -> list[FrozenTrial]:
        seen = [study.frozen_trial(spec, space, each, for_sampler=True) for each in configurations]
        if lesson == "ignored":
            return seen
        modes = study.searched_modes(spec)
        [score] = study.values_of_failed(modes, seen, as_median=lesson == "median")
        told = loptunes(spec, space, configurations)
        for number, configuration in enumerate(configurations):
            if told[number].state != TrialState.COMPLETE:
                continue
            failed = failed_by_settings(configuration)
            constraints = {"failed": 1.0 if failed else -1.0}
            told[number] = optuna.create_trial(
                state=TrialState.COMPLETE,
                value=score if failed else told[number].value,
                params=told[number].params,
                distributions=told[number].distributions,
                constraints=constraints if lesson == "constraint" else None,
            )
        return told

    loptunes = study.sampler_trials
    return loptunes if lesson == RULE else history


def search(
    spec: SweepSpec, surface: Surface, trials: int, lesson: str = RULE
) -> list[Configuration]:
    """Return the configurations of one search with two concurrent trials, in the order in which
    they ended.
    """
    with mock.patch.object(study, "sampler_trials", told_as(lesson)):
        return _search(spec, surface, trials)


def _search(spec: SweepSpec, surface: Surface, trials: int) -> list[Configuration]:
    space = Space(spec.parameters)
    random = np.random.default_rng([spec.search.seed, 1])
    configurations: list[Configuration] = []
    waiting: list[tuple[int, int]] = []
    running: list[tuple[int, int]] = []
    ended: list[int] = []
    while sum(len(configuration.results) for configuration in configurations) < trials:
        while len(running) < AT_A_TIME:
            if not waiting:
                point = study.propose(spec, space, configurations)
                if point is None:
                    break
                resolved = space.resolve(point, spec.program)
                mark = fingerprint(resolved)
                configurations.append(
                    Configuration(len(configurations), point, resolved, mark, 0.0)
                )
                waiting = [(configurations[-1].number, seed) for seed in spec.seeds]
            running.append(waiting.pop(0))
        if not running:
            break
        number, seed = running.pop(int(random.integers(len(running))))
        score = (
            surface.truth(configurations[number].parameters)
            + surface.noise * random.standard_normal()
        )
        result = replace(
            open_trial(configurations[number], seed), state="COMPLETE", score=score, step=1, time=0
        )
        if math.isnan(score) or (surface.failing and random.random() < surface.failing):
            # The cause determines the value that the sampler gets. Here it is the same for trials
            # that fail independently of their settings, to measure the cost of blaming settings.
            result = replace(
                result, state="FAIL", score=math.nan, reason="it failed", by_settings=True
            )
        results = {**configurations[number].results, seed: result}
        configurations[number] = replace(configurations[number], results=results)
        if len(results) == len(spec.seeds):
            ended.append(number)
    return [configurations[number] for number in ended]


def best_mean(configurations: list[Configuration]) -> Configuration:
    """Return the configuration with the best mean over its seeds."""
    return max(configurations, key=score_of)


def score_of(configuration: Configuration) -> float:
    """Return the mean over the seeds that have a score."""
    return float(np.nanmean([result.score for result in configuration.results.values()]))


WAYS = ("one seed", "three seeds")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=50, help="searches per cell (default: 50)")
    parser.add_argument(
        "--failures", action="store_true", help="compare the values that samplers get for failures"
    )
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--lessons", nargs="+", choices=LESSONS, default=list(LESSONS))
    parser.add_argument(
        "surfaces", nargs="*", choices=[*SURFACES, []], help="surfaces (default: all)"
    )
    arguments = parser.parse_args()
    if arguments.failures:
        compare_failures(arguments.repeats, arguments.samplers, arguments.lessons)
        return
    headings = ["surface", "sampler", "seeds", *(f"{size} trials" for size in SIZES)]
    rows = []
    pooled = defaultdict(list)
    for name in arguments.surfaces or SURFACES:
        surface = SURFACES[name]
        top, middle = extent(surface)
        for sampler in arguments.samplers:
            settings = SAMPLERS[sampler]
            regrets: dict[tuple[str, int], list[float]] = defaultdict(list)
            for repeat in range(arguments.repeats):
                for key, score in scores_of(
                    surface, space_of(surface.parameters, settings, repeat)
                ).items():
                    regrets[key].append(100 * (top - score) / (top - middle))
            for way in WAYS:
                rows.append([name, sampler, way, *(mean(regrets[way, size], 1) for size in SIZES)])
            for key, values in regrets.items():
                pooled[sampler, *key].append(values)
        print_rows(
            f"Regret, % of that of a random point: {name}",
            headings,
            rows[-len(arguments.samplers) * len(WAYS) :],
        )
    averages = {key: np.mean(values, axis=0) for key, values in pooled.items()}
    rows = [
        [
            "all",
            sampler,
            way,
            *(
                mean(averages[sampler, way, size] - averages["random", "one seed", size], 1)
                for size in SIZES
            ),
        ]
        for sampler in arguments.samplers
        for way in WAYS
    ]
    print_rows("Mean over the surfaces, minus random with one seed", headings, rows)


def compare_failures(repeats: int, samplers: list[str], lessons: list[str]) -> None:
    """Print regret and number of failures for each treatment of failed configurations, after every
    second repeat.
    """
    cells: list[tuple[str, str, str]] = []
    for name in FAILURES:
        for sampler in samplers:
            if sampler == "random":  # ignores the history
                cells.append((name, sampler, "ignored"))
            else:
                cells += [(name, sampler, lesson) for lesson in lessons]
    extents = {name: extent(surface) for name, surface in FAILURES.items()}
    regrets: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    failed: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    headings = ["surface", "sampler", "told as", "failed of 20"]
    headings += [f"{size} trials: {word}" for size in FAILURE_SIZES for word in ("median", "90%")]
    for repeat in range(repeats):
        for name, sampler, lesson in cells:
            surface = FAILURES[name]
            spec = space_of(surface.parameters, SAMPLERS[sampler], repeat)
            ended = search(spec, surface, FAILURE_SIZES[-1], lesson)
            top, middle = extents[name]
            for size in FAILURE_SIZES:
                complete = [each for each in ended[:size] if each.results[0].state == "COMPLETE"]
                score = surface.truth(best_mean(complete).parameters) if complete else 0.0
                regret = 100 * (top - score) / (top - middle)
                regrets[name, sampler, lesson, size].append(regret)
            failed[name, sampler, lesson].append(
                sum(each.results[0].state == "FAIL" for each in ended)
            )
        if (repeat + 1) % 2 and repeat + 1 < repeats:
            continue
        rows = []
        for cell in cells:
            row = [*cell, f"{np.mean(failed[cell]):.1f}"]
            for size in FAILURE_SIZES:
                row += [f"{np.quantile(regrets[*cell, size], part):.0f}" for part in (0.5, 0.9)]
            rows.append(row)
        print_rows(f"Regret, % of that of a random point: {repeat + 1} searches", headings, rows)


def scores_of(surface: Surface, spec: SweepSpec) -> dict[tuple[str, int], float]:
    """Return (number of seeds, number of trials) -> true score of the chosen point."""
    singles = search(spec, surface, SIZES[-1])
    triples = search(spec.model_copy(update={"seeds": [0, 1, 2]}), surface, SIZES[-1])
    scores = {}
    for size in SIZES:
        scores["one seed", size] = surface.truth(best_mean(singles[:size]).parameters)
        scores["three seeds", size] = surface.truth(best_mean(triples[: size // 3]).parameters)
    return scores


def extent(surface: Surface) -> tuple[float, float]:
    """Return the best score of a surface and the mean score, from many random points."""
    spec = space_of(surface.parameters, {}, 0)
    space = Space(spec.parameters)
    random = np.random.default_rng(0)

    def choose(key: str, parameter: ParameterSpec) -> Any:
        if parameter.options is not None:
            return parameter.options[int(random.integers(len(parameter.options)))]
        low, high, _ = parameter.bounds
        if parameter.kind.startswith("log"):
            return math.exp(random.uniform(math.log(low), math.log(high)))
        return random.uniform(low, high)

    scores = [surface.truth(space.walk(choose)) for _ in range(20_000)]
    return float(np.nanmax(scores)), float(np.nanmean(scores))


def space_of(parameters: dict[str, Any], settings: dict[str, Any], seed: int) -> SweepSpec:
    data = {
        "name": "regret",
        "trainer": "tiny_kk",
        "parameters": parameters,
        "seeds": [0],
        "search": {"sampler": "random", "configurations": SIZES[-1], "seed": seed, **settings},
    }
    return resolve_space(YamlDocument(data, {}, "regret"), Path.cwd())


if __name__ == "__main__":
    main()
