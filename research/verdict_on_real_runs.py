"""The verdict and its rivals on real trainings: how often each claims what is not there, and finds
what is.

    # cases a study; minutes on one core:
    python -m research.verdict_on_real_runs --cases 400
    # three finalists, five seeds:
    python -m research.verdict_on_real_runs --picture docs/pictures/real_runs.png

Data: final scores of DQN and PPO at about 140 points of their hyperparameters with ten seeds each,
seven studies of ARLBench's Sobol landscapes (Becktepe et al. 2024, arXiv:2409.18827; BSD-3-Clause).
Many runs collapse; scores are not normal. All seeds are fresh: nothing was chosen by them.

- equal means: different configurations, each centered on the mean of its ten seeds. Shapes and
  spreads stay real, and every claim is false. Drawn seeds are shifted so that their means vary as
  those of a population do, not as those of a part of the ten (`widened`).
- real: the scores as they are. A claim is wrong if the finalist is no better on the seeds that no
  test saw.
- rounds: one look at eight seeds, and rounds that may stop at five, six or seven.

Rivals judge each finalist alone, at 5% divided by the number of finalists if they have a level: the
better mean; all seeds better; Welch's t test; Mann-Whitney's test; a percentile bootstrap of the
difference of means, as rliable draws it (arXiv:2108.13264); bars of one standard deviation that do
not overlap; a paired t test. Scores that do not vary over a test's seeds give no t test: equal
scores are coarse, not certain.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray
from scipy import stats

from dashboards.statistics.arms import compare_arms
from dashboards.statistics.dunnett import FALSE_CLAIMS
from dashboards.statistics.sequential import Design, boundaries, looks_up_to
from research.decide import in_rounds
from research.png import write_png
from research.tables import print_rows
from research.verdict_errors import AFTER, alone_tests

Array = NDArray[np.float64]
Test = Callable[[Array], Array]  # scores [N, C, S], the baseline first -> claims [N, C - 1]
# levels by study; cases with a claim, wrong claims and claims on real differences
Measured = tuple[list[float], int, int, int]
RUNS = Path(__file__).parent / "data" / "real_runs.csv.gz"
SEEDS = 10
COARSE = 1e-9  # standard deviation of scores that are equal but for rounding
LAYOUTS = [(1, 3), (1, 5), (2, 3), (2, 5), (3, 5), (8, 3)]  # finalists, fresh seeds
ROUNDS = 8  # seeds up to which rounds look
# A test holds its level if it claims so much falsely on average, but for a standard error over
# studies, and no more than twice that in any.
WORST = 2 * FALSE_CLAIMS
_RESAMPLES = 1000


def studies() -> dict[str, Array]:
    """Study -> scores of the configurations that have all seeds and differ between them, [C, S], of
    unit variance.
    """
    by_study = {}
    for name, rows in pd.read_csv(RUNS).groupby("study"):
        table = (
            rows.pivot(index="configuration", columns="seed", values="score")
            .dropna()
            .to_numpy(float)
        )
        table = table[table.std(axis=1) > 1e-9 * table.std()]
        by_study[str(name)] = (table - table.mean()) / table.std()
    return by_study


def drawn(table: Array, finalists: int, cases: int, generator: np.random.Generator) -> Array:
    """Configurations with their seeds in random order, the same order for all of one case, [N, C,
    10].
    """
    chosen = np.array(
        [generator.choice(len(table), finalists + 1, replace=False) for _ in range(cases)]
    )
    order = generator.permuted(np.tile(np.arange(SEEDS), (cases, 1)), axis=1)
    return np.take_along_axis(table[chosen], order[:, None, :], axis=2)


def widened(scores: Array) -> Array:
    """Give the means of drawn seeds, [N, C, S], the variance that seeds of a population have.

    Means of S of the ten seeds around which they are centered vary by (1 - S / 10) too little. The
    shift that repairs it repairs the mean of the first K of the seeds, and its covariance with that
    of S, as well.
    """
    share = scores.shape[2] / SEEDS
    return scores + scores.mean(axis=2, keepdims=True) * (1 / np.sqrt(1 - share) - 1)


def level_of(scores: Array) -> float:
    return FALSE_CLAIMS / (scores.shape[1] - 1)


def verdict(scores: Array) -> Array:
    shown, best = AFTER(scores)
    return np.asarray(shown[:, None] & (best[:, None] == np.arange(1, scores.shape[1])))


def better_mean(scores: Array) -> Array:
    return np.asarray(scores[:, 1:].mean(axis=2) > scores[:, :1].mean(axis=2))


def all_better(scores: Array) -> Array:
    return np.asarray((scores[:, 1:] > scores[:, :1]).all(axis=2))


def welch(scores: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        test = stats.ttest_ind(
            scores[:, 1:], scores[:, :1], axis=2, equal_var=False, alternative="greater"
        )
    varied = scores[:, 1:].std(axis=2) + scores[:, :1].std(axis=2) > COARSE
    return np.asarray(varied & (test.pvalue < level_of(scores)))


def paired(scores: Array) -> Array:
    varied = (scores[:, 1:] - scores[:, :1]).std(axis=2) > COARSE
    return varied & alone_tests(scores)


def mann_whitney(scores: Array) -> Array:
    theirs = np.broadcast_to(scores[:, :1], scores[:, 1:].shape)
    return np.asarray(
        stats.mannwhitneyu(scores[:, 1:], theirs, axis=2, alternative="greater").pvalue
        < level_of(scores)
    )


def bootstrap(scores: Array) -> Array:
    """The lower bound of a percentile interval, seeds of each configuration drawn by themselves."""
    seeds = scores.shape[2]
    generator = np.random.default_rng(0)
    claims = np.zeros((len(scores), scores.shape[1] - 1), bool)
    for case, rows in enumerate(scores):
        means = [
            row[generator.integers(0, seeds, (_RESAMPLES, seeds))].mean(axis=1) for row in rows
        ]
        apart = np.array(means[1:]) - means[0]
        claims[case] = np.quantile(apart, level_of(scores), axis=1) > 0
    return claims


def bars_apart(scores: Array) -> Array:
    mean = scores.mean(axis=2)
    deviation = scores.std(axis=2, ddof=1)
    return np.asarray(mean[:, 1:] - deviation[:, 1:] > mean[:, :1] + deviation[:, :1])


TESTS: dict[str, Test] = {
    "verdict": verdict,
    "paired t test": paired,
    "Welch": welch,
    "Mann-Whitney": mann_whitney,
    "bootstrap": bootstrap,
    "all seeds better": all_better,
    "bars apart": bars_apart,
    "better mean": better_mean,
}


def measured(test: Test, finalists: int, seeds: int, cases: int) -> Measured:
    levels: list[float] = []
    claimed = wrong = total = 0
    for number, table in enumerate(studies().values()):
        generator = np.random.default_rng(number)
        centered = drawn(table - table.mean(axis=1, keepdims=True), finalists, cases, generator)
        levels.append(float(test(widened(centered[:, :, :seeds])).any(axis=1).mean()))
        real = drawn(table, finalists, cases, generator)
        claims = test(real[:, :, :seeds])
        unseen = real[:, :, seeds:].mean(axis=2)
        claimed += int(claims.any(axis=1).sum())
        wrong += int((claims & (unseen[:, 1:] <= unseen[:, :1])).sum())
        total += int(claims.sum())
    return levels, claimed, wrong, total


def draw(levels: dict[str, list[float]], finds: dict[str, float]) -> go.Figure:
    """Draw how often each test claims where means are equal, from the mean of the studies to the
    worst.
    """
    drawing = go.Figure()
    for name in reversed(list(levels)):
        rates = 100 * np.array(levels[name])
        color = "#1a7f4b" if name.startswith("verdict") else "#5b6472"
        row = f"{name}  (finds {finds[name]:.0f}%)"
        drawing.add_scatter(
            x=[rates.mean(), rates.max()], y=[row, row], mode="lines", line={"color": color}
        )
        drawing.add_scatter(
            x=[rates.mean()], y=[row], mode="markers", marker={"color": color, "size": 11}
        )
    drawing.add_vline(x=100 * FALSE_CLAIMS, line={"color": "#c0392b", "dash": "dot"})
    drawing.update_layout(
        height=380, showlegend=False, font={"size": 14}, margin={"l": 10, "r": 20, "t": 20, "b": 50}
    )
    title = "claims where means are equal, %: mean of seven studies (dot) to the worst study"
    drawing.update_xaxes(
        title=title,
        type="log",
        tickvals=[1, 2, 5, 10, 20, 50, 100],
        range=[0, 2],
        gridcolor="#e5e8ec",
    )
    return drawing


def write_picture(path: Path, cases: int) -> None:
    finalists = 3
    seeds = 5
    measurements = {name: measured(test, finalists, seeds, cases) for name, test in TESTS.items()}
    levels = {name: measurement[0] for name, measurement in measurements.items()}
    finds = {
        name: 100 * measurement[1] / (len(measurement[0]) * cases)
        for name, measurement in measurements.items()
    }
    write_png(draw(levels, finds), path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=400, help="cases a study (default: 400)")
    parser.add_argument(
        "--picture", type=Path, help="draw three finalists on five seeds into this file instead"
    )
    parser.add_argument(
        "--shared", action="store_true", help="vary how many seeds arms share instead"
    )
    arguments = parser.parse_args()
    if arguments.shared:
        print_shared(arguments.cases)
        return
    cases = arguments.cases
    if arguments.picture is not None:
        write_picture(arguments.picture, cases)
        return
    for finalists, seeds in LAYOUTS:
        measurements = {
            name: measured(test, finalists, seeds, cases) for name, test in TESTS.items()
        }
        print_layout(f"{finalists} x {seeds}", measurements, cases)
    print_rounds(cases)


def print_layout(layout: str, measurements: Mapping[str, Measured], cases: int) -> None:
    """Print a row a test, and which finds most of those that hold their level."""
    rows = []
    holding = {}
    for name, (levels, claimed, wrong, total) in measurements.items():
        error = 100 * np.std(levels, ddof=1) / np.sqrt(len(levels))
        finds = 100 * claimed / (len(levels) * cases)
        if 100 * np.mean(levels) - error <= 100 * FALSE_CLAIMS and max(levels) <= WORST:
            holding[name] = finds
        row = [layout, name, f"{100 * np.mean(levels):.1f} ± {error:.1f}"]
        row += [f"{100 * max(levels):.1f}", f"{finds:.1f}", f"{100 * wrong / max(total, 1):.1f}"]
        rows.append(row)
    headings = ["finalists x seeds", "test", "false at equal means", "worst study"]
    print_rows("Real runs, %", [*headings, "real: claims in", "of them wrong"], rows)
    allowed = f"{FALSE_CLAIMS:.0%} on average and {WORST:.0%} in every study"
    finders = sorted(holding.items(), key=lambda finder: -finder[1])
    listed = ", ".join(f"{name} ({finds:.1f})" for name, finds in finders) or "none"
    print(f"{layout}, holds {allowed}, the one that finds most first: {listed}", flush=True)


def rounds_on(table: Array, design: Design, cases: int, number: int) -> tuple[float, float, float]:
    """Shares of cases with a false claim and with a claim on real differences, and seeds of the
    first finalist there.
    """
    generator = np.random.default_rng(number)
    centered = table - table.mean(axis=1, keepdims=True)
    equal = widened(drawn(centered, design.finalists, cases, generator)[:, :, :ROUNDS])
    real = drawn(table, design.finalists, cases, generator)[:, :, :ROUNDS]
    false = in_rounds(design, equal)[0] == 1
    decided, seeds, _ = in_rounds(design, real)
    claimed = (decided == 1).any(axis=1)
    return float(false.any(axis=1).mean()), float(claimed.mean()), float(seeds.mean())


def print_rounds(cases: int) -> None:
    """Print false claims, finds and seeds of one look at ``ROUNDS`` seeds, and of rounds up to
    them.
    """
    rows = []
    for finalists in (1, 2, 3):
        for name, looks in (("one look", (ROUNDS,)), ("rounds", looks_up_to(ROUNDS))):
            design = Design(looks, finalists, 0.0, *boundaries(looks, finalists))
            studied = [
                rounds_on(table, design, cases, number)
                for number, table in enumerate(studies().values())
            ]
            levels, finds, seeds = zip(*studied, strict=True)
            error = 100 * np.std(levels, ddof=1) / np.sqrt(len(levels))
            row = [f"{finalists}", name, f"{100 * np.mean(levels):.1f} ± {error:.1f}"]
            row += [
                f"{100 * max(levels):.1f}",
                f"{100 * np.mean(finds):.1f}",
                f"{np.mean(seeds):.1f}",
            ]
            rows.append(row)
    headings = ["finalists", "up to 8 seeds", "false at equal means", "worst study"]
    print_rows("Rounds on real runs, %", [*headings, "real: claims in", "seeds"], rows)


# finalists, runs of each arm, seeds that the baseline shares with each finalist
SHARED_LAYOUTS = [
    (1, 3, 3), (1, 5, 5), (3, 3, 3), (3, 5, 5), (8, 5, 5),
    (1, 5, 3), (1, 8, 4), (3, 5, 3), (3, 6, 4), (8, 6, 4),
    (1, 3, 0), (1, 5, 0), (1, 8, 0), (2, 5, 0), (3, 3, 0), (3, 5, 0), (8, 5, 0),
]  # fmt: skip


def drawn_apart(
    table: Array, finalists: int, runs: int, shared: int, generator: np.random.Generator
) -> Array:
    """Draw the scores of one case, [C, runs], of which the first ``shared`` are on common seeds.

    The other seeds of an arm are drawn by themselves: their scores are those of labels.
    """
    chosen = generator.choice(len(table), finalists + 1, replace=False)
    order = generator.permutation(SEEDS)
    rows = []
    for configuration in chosen:
        rest = generator.permutation(order[shared:])[: runs - shared]
        rows.append(table[configuration, np.concatenate([order[:shared], rest])])
    return np.array(rows)


def claims_any(scores: Array, shared: int) -> bool:
    """Return whether `compare_arms` finds an arm of one case, [C, runs], better than the first."""
    runs = scores.shape[1]
    arms = {}
    for place, row in enumerate(scores):
        seeds = [seed if seed < shared else (place, seed) for seed in range(runs)]
        arms[str(place)] = dict(zip(seeds, map(float, row), strict=True))
    comparison, _ = compare_arms(arms, "0")
    return any(decision.better for decision in comparison.decisions)


def print_shared(cases: int) -> None:
    """Print false positives and claims on real differences where all, some or no seeds are
    shared.
    """
    rows = []
    for finalists, runs, shared in SHARED_LAYOUTS:
        levels = []
        finds = []
        for number, table in enumerate(studies().values()):
            generator = np.random.default_rng(number)
            centered = table - table.mean(axis=1, keepdims=True)
            false = found = 0
            for _ in range(cases):
                equal = drawn_apart(centered, finalists, runs, shared, generator)
                false += claims_any(widened(equal[None])[0], shared)
                real = drawn_apart(table, finalists, runs, shared, generator)
                found += claims_any(real, shared)
            levels.append(false / cases)
            finds.append(found / cases)
        error = 100 * np.std(levels, ddof=1) / np.sqrt(len(levels))
        row = [f"{finalists} x {runs}", str(shared), f"{100 * np.mean(levels):.1f} ± {error:.1f}"]
        rows.append([*row, f"{100 * max(levels):.1f}", f"{100 * np.mean(finds):.1f}"])
    headings = ["finalists x runs", "shared seeds", "false at equal means", "worst study"]
    print_rows("All, some and no shared seeds, %", [*headings, "real: claims in"], rows)


if __name__ == "__main__":
    main()
