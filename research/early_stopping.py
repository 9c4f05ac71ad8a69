"""What does early stopping save, and what does it risk? Prints how often the best trial is stopped,
the work, and the result at equal work.

    python -m research.early_stopping              # simulated curves, two minutes on one core
    python -m research.early_stopping runs/NAME    # curves of a finished sweep without stopping

The rules are those of a sweep. A simulated sweep has 24 trials of 10 evaluations, four at a time.
"Best stopped" is the fraction of sweeps in which the trial that would have scored best is stopped.
"Work" is the number of evaluations, as a fraction of the evaluations without stopping. For "found
at equal work", each rule starts as many trials as the work of 12 full trials allows. The figure is
the true score of the best trial that reached its end, minus the same without stopping, in standard
deviations between configurations.

Simulated curves rise from a common start to normally distributed ends, with noise of half a
standard deviation: all at the same pace, each at its own pace, or the better ones later, so that
curves cross. The rank correlations of evaluations 1, 2, 3 and 5 with the last one are printed below
each kind of curve.
"""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.tune.schedulers import TrialScheduler
from scipy.stats import spearmanr

from loptune.score import score
from loptune.yaml_document import YamlDocument
from research.tables import mean, percent, print_rows
from sweep.search.trial_report import EVALUATION, SCORE
from sweep.space.file import resolve_space
from sweep.space.spec import SchedulerSpec, SweepSpec
from sweep.trials.scheduler import trial_scheduler
from trainer.tracking.uploading import recorded_values

EVALUATIONS = 10
WINDOW = 3
TRIALS = 24
AT_A_TIME = 4
FULL_TRIALS = 12
# mean rise of a curve from its start to its end, in standard deviations between configurations
START = 3.0
NOISE = 0.5  # standard deviation of an evaluation
# kind of curves -> spread of the paces, and their correlation with the end
PACES = {"same pace": (0.0, 0.0), "own pace": (0.7, 0.0), "better ones later": (0.7, 0.6)}
RULES: dict[str, dict[str, Any]] = {
    "none": {},
    **{
        f"asha, grace {grace}, factor {factor}": {
            "asha": {"grace_period": grace, "reduction_factor": factor}
        }
        for grace in (1, 2, 3, 4)
        for factor in (2, 3, 4)
    },
}
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Trial:
    """A trial with the attributes that a scheduler reads."""

    trial_id: str


@dataclass(frozen=True)
class Curves:
    """Learning curves of one sweep, or of a pool of trials."""

    seen: Floats  # [N, E], running means of evaluations, the scores that a scheduler sees
    ends: Floats  # [N], true score of the configuration in standard deviations

    def draw(self, random: np.random.Generator, count: int) -> "Curves":
        """Return randomly drawn curves, each at most once if there are enough."""
        rows = random.choice(len(self.ends), count, replace=count > len(self.ends))
        return Curves(self.seen[rows], self.ends[rows])


def simulated(random: np.random.Generator, count: int, spread: float, later: float) -> Curves:
    ends = random.standard_normal(count)
    pace = 3 * np.exp(
        spread * (later * ends + np.sqrt(1 - later**2) * random.standard_normal(count))
    )
    steps = np.arange(1, EVALUATIONS + 1)
    learned = (1 - np.exp(-steps / pace[:, None])) / (1 - np.exp(-EVALUATIONS / pace[:, None]))
    scores = (START + ends)[:, None] * learned + NOISE * random.standard_normal(
        (count, EVALUATIONS)
    )
    seen = [scores[:, max(0, last - WINDOW) : last].mean(axis=1) for last in steps]
    return Curves(np.array(seen).T, ends)


def measured(sweep: Path) -> Curves:
    """Return the curves of a sweep's trials. The true score of a configuration is the mean of its
    last scores over its seeds.
    """
    rows: dict[str, list[list[float]]] = {}
    for trial in sorted((sweep / "trials").glob("c*-s*")):
        history = recorded_values(trial / "metrics.jsonl", "eval/accuracy")
        steps = sorted(step for step in history if step > 0)
        values = [score({s: v for s, v in history.items() if s <= last}, WINDOW) for last in steps]
        rows.setdefault(trial.name.split("-")[0], []).append(values)
    longest = max(len(row) for several in rows.values() for row in several)
    complete = {
        name: [row for row in several if len(row) == longest] for name, several in rows.items()
    }
    curves = np.array([row for several in complete.values() for row in several])
    ends = np.array(
        [np.mean([row[-1] for row in several]) for several in complete.values() for _ in several]
    )
    places = np.linspace(0, longest - 1, EVALUATIONS).round().astype(int)
    return Curves(curves[:, places], (ends - ends.mean()) / max(ends.std(), 1e-9))


def scheduler(name: str, spec: SweepSpec) -> TrialScheduler:
    """Return a new scheduler for a rule of `RULES`."""
    return trial_scheduler(
        spec.model_copy(update={"scheduler": SchedulerSpec.model_validate(RULES[name])})
    )


def run(
    rule: TrialScheduler, curves: Curves, random: np.random.Generator, work: float
) -> tuple[list[int], int]:
    """Return the trials that reached their end, and the number of evaluations of all trials."""
    trials = iter(Trial(str(number)) for number in range(len(curves.ends)))
    active: dict[int, tuple[Trial, int]] = {}
    ended = []
    used = 0
    while used < work:
        while len(active) < AT_A_TIME and (trial := next(trials, None)) is not None:
            rule.on_trial_add(None, trial)
            active[int(trial.trial_id)] = trial, 0
        if not active:
            break
        number = list(active)[int(random.integers(len(active)))]
        trial = active[number][0]
        count = active[number][1] + 1
        used += 1
        active[number] = trial, count
        decision = rule.on_trial_result(
            None, trial, {EVALUATION: count, SCORE: curves.seen[number, count - 1]}
        )
        if count == EVALUATIONS:
            ended.append(number)
        if count == EVALUATIONS or decision == TrialScheduler.STOP:
            del active[number]
    return ended, used


def rows_of(
    kind: str, curves: Iterator[tuple[Curves, Curves]], spec: SweepSpec, rules: Iterable[str]
) -> list[list[str]]:
    """Return a row for each rule, all from the same curves: ``few`` trials for one sweep, and
    ``many`` for equal work.
    """
    stopped: dict[str, list[bool]] = {name: [] for name in rules}
    works: dict[str, list[float]] = {name: [] for name in rules}
    ends: dict[str, list[float]] = {name: [] for name in rules}
    for repeat, (few, many) in enumerate(curves):
        for name in rules:
            ended, used = run(scheduler(name, spec), few, np.random.default_rng(repeat), np.inf)
            stopped[name].append(int(few.seen[:, -1].argmax()) not in ended)
            works[name].append(used / few.seen.size)
            ended, _ = run(
                scheduler(name, spec),
                many,
                np.random.default_rng(repeat),
                FULL_TRIALS * EVALUATIONS,
            )
            ends[name].append(
                float(many.ends[max(ended, key=lambda number: many.seen[number, -1])])
            )
    gains = {name: np.array(values) - np.array(ends["none"]) for name, values in ends.items()}
    return [
        [kind, name, percent(stopped[name]), mean(works[name]), mean(gains[name])] for name in rules
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sweep", nargs="*", type=Path, help="folder of a finished sweep (default: simulated curves)"
    )
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES)
    parser.add_argument("--repeats", type=int, default=400, help="sweeps per cell (default: 400)")
    arguments = parser.parse_args()
    spec = resolve_space(
        YamlDocument(
            {
                "name": "stopping",
                "trainer": {"preset": "tiny_kk", "overrides": {"max_steps": 10 * EVALUATIONS}},
                "parameters": {"optim.lr": {"loguniform": [1e-5, 1e-3]}},
                "search": {"sampler": "random", "configurations": TRIALS},
            },
            {},
            "stopping",
        ),
        Path.cwd(),
    )
    random = np.random.default_rng(0)
    rows = []
    many = FULL_TRIALS * EVALUATIONS
    kinds: dict[str, Any] = {
        kind: lambda count, pace=pace: simulated(random, count, *pace)
        for kind, pace in PACES.items()
    }
    if arguments.sweep:
        pools = {path.name: measured(path) for path in arguments.sweep}
        kinds = {
            name: lambda count, pool=pool: pool.draw(random, count) for name, pool in pools.items()
        }
    for kind, draw in kinds.items():
        sample = draw(1000)
        correlations = ", ".join(
            f"{spearmanr(sample.seen[:, k - 1], sample.seen[:, -1])[0]:.2f}" for k in (1, 2, 3, 5)
        )
        print(f"{kind}: rank correlation of evaluations 1, 2, 3, 5 with the last {correlations}")
        rows += rows_of(
            kind,
            ((draw(TRIALS), draw(many)) for _ in range(arguments.repeats)),
            spec,
            arguments.rules,
        )
    headings = ["curves", "rule", "best stopped, %", "work", "found at equal work, sd"]
    print_rows(f"{TRIALS} trials of {EVALUATIONS} evaluations", headings, rows)


if __name__ == "__main__":
    main()
