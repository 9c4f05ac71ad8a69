"""Is Lopti more than a larger effective learning rate? This analysis was written before the first
trial.

    sweep run search_spaces/lopti_learning_rate.yaml
    python -m research.learning_rate_peaks runs/lopti_learning_rate    # or the folders of its parts
    python -m research.learning_rate_peaks FOLDER ... --picture FILE.png

Design: five rules (GRPO; GRPO with two epochs; Lopti 0.5; two passes with a random split where
Lopti splits by probability; AR 0.3). All have the same seven learning rates, 7.5e-5 to 6e-4 in half
octaves, and seeds 0 to 5. Score: mean of the last three ``eval/accuracy`` (steps 80, 90, 100), 400
puzzles of three people, two answers each.

- **Peak of a rule**: the means over seeds at the seven learning rates are fitted by a parabola in
  log2 of the learning rate (least squares); the peak is its largest value within the grid. If the
  parabola opens upward or its vertex is outside of the grid, the rule has no peak there. It is then
  printed as "at the edge", and a comparison with it decides nothing.
- **Noise**: jackknife over seeds. All rules share the seeds, so one seed is left out of all rules
  at once; five degrees of freedom.
- **Primary comparison**: peak(Lopti) - peak(two epochs). Equivalent if the 90% interval lies within
  +-0.015; otherwise Lopti is better (interval above 0), worse (below 0), or nothing is decided. The
  hypothesis is "equivalent".
- **Secondary comparisons**, with the same difference and interval, uncorrected and only
  descriptive: every rule compared with GRPO; the learning rate of each rule's peak compared with
  GRPO's, in octaves (the hypothesis is -1 for the three rules with two steps); Lopti compared with
  the random split.
- **Secondary experiment**: every rule at the learning rate of the grid nearest to its peak, on
  seeds 6 to 13, with the held-out test set in addition to the 400 puzzles; paired differences from
  GRPO, with Dunnett's correction for four.
- **Failed trials** (diverged, after all retries) get the lowest score of all trials. Nothing else
  is left out.
- **Checks**: the largest distance of a mean from its parabola is printed. As a sensitivity
  analysis, the primary comparison is repeated with the five learning rates around each rule's best
  mean; the primary one decides.
- The script analyzes only rules with all their trials. Until then it prints means and peaks of the
  complete seeds. These are not part of the plan and decide nothing.

Simulated before the first trial (2,000 times, curvature 0.02 per squared octave): with equal peaks,
the plan decides "equivalent" in 68% of cases if seeds differ by 0.015, and in 16% if by 0.025. With
peaks 0.015 apart, it wrongly decides this in 5% and 3%, and finds the better one in 81% and 47%;
with peaks 0.03 apart, in 100% and 94%.

Additional experiment, of lower priority: GRPO, two epochs and Lopti under plain SGD, where the
second step is not normalized again. AdamW with ``betas: [0, 0.999]`` and ``eps: 1`` is SGD, because
gradients are below 0.001. The learning rates are chosen from runs of GRPO only, on seeds 100 and
101; the analysis is the same. They are 0.0707 to 0.566 in half octaves, and were fixed when the
middle five had run on seeds 0 and 1. To first order, Lopti's peak is as high as GRPO's and at the
same learning rate; the peak of two epochs is as high and one octave lower.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import plotly.graph_objects as go

from dashboards.labels import PALETTE
from dashboards.statistics.peaks import Peak, fitted_peak, jackknife
from loptune.files import read_json_lines
from research.png import write_png

MARGIN = 0.015  # peaks that differ by less are equivalent
BASELINE = "GRPO"
PLANNED_SEEDS = 6
PRIMARY = ("Lopti", "two epochs")

Scores = dict[str, dict[float, dict[int, float]]]  # rule -> learning rate -> seed -> score


def read_scores(sweeps: Sequence[Path]) -> Scores:
    """Read the scores of all trials that have ended; a failed trial gets the lowest score of all.

    If a trial ran twice, in two of the folders, its first result is used.
    """
    scores: Scores = defaultdict(lambda: defaultdict(dict))
    failed = []
    for sweep in sweeps:
        settings: dict[int, tuple[str, float]] = {}
        for event, _ in read_json_lines(sweep / "events.jsonl"):
            if event["event"] == "configuration":
                point = event["parameters"]
                settings[event["configuration"]] = str(point["rule"]), float(point["optim.lr"])
            if event["event"] == "result":
                rule, rate = settings[event["configuration"]]
                if event["state"] == "COMPLETE":
                    scores[rule][rate].setdefault(event["seed"], float(event["score"]))
                else:
                    failed.append((rule, rate, event["seed"]))
    lowest = min(
        score for rates in scores.values() for row in rates.values() for score in row.values()
    )
    for rule, rate, seed in failed:
        scores[rule][rate].setdefault(seed, lowest)
    return scores


def peaks_of(scores: Scores, seeds: list[int], near: int | None = None) -> dict[str, Peak]:
    """Return the peak of each rule over these seeds. With ``near``, fit only this many learning
    rates around the best mean.
    """
    peaks = {}
    for rule, rates in scores.items():
        octaves = np.log2(np.array(sorted(rates)))
        means = np.array([mean([rates[rate][seed] for seed in seeds]) for rate in sorted(rates)])
        if near is not None:
            first = int(np.clip(means.argmax() - near // 2, 0, len(means) - near))
            octaves = octaves[first : first + near]
            means = means[first : first + near]
        peaks[rule] = fitted_peak(octaves, means)
    return peaks


def complete_seeds(scores: Scores) -> dict[str, list[int]]:
    """Return rule -> the seeds that ran at all learning rates."""
    every = {rate for rates in scores.values() for rate in rates}
    return {
        rule: sorted(set.intersection(*(set(rates.get(rate, ())) for rate in every)))
        for rule, rates in scores.items()
    }


def having(scores: Scores, seeds: list[int]) -> Scores:
    """Return the rules that ran all of these seeds at all learning rates."""
    complete = complete_seeds(scores)
    return {rule: rates for rule, rates in scores.items() if set(complete[rule]) >= set(seeds)}


def decision(low: float, high: float) -> str:
    """Return the decision that follows from an interval of Lopti's peak minus the peak of two
    epochs.
    """
    if low >= -MARGIN and high <= MARGIN:
        return "equivalent"
    if low > 0:
        return "better"
    return "worse" if high < 0 else "nothing is decided"


def report(scores: Scores, seeds: list[int], *, planned: bool = True) -> None:
    """Print peaks and differences and, if the seeds are the planned ones, the decision."""
    full = peaks_of(scores, seeds)
    parts = [peaks_of(scores, [other for other in seeds if other != seed]) for seed in seeds]
    for rule, peak in full.items():
        low, high = jackknife(peak.score, [part[rule].score for part in parts])
        edge = "" if peak.inside else ", at the edge"
        place = f"at {2**peak.octave:.3g}{edge}, max_residual {peak.max_residual:.4f}"
        print(f"{rule}: peak {peak.score:.4f} [{low:.4f}, {high:.4f}] {place}")
    pairs = [
        PRIMARY,
        ("Lopti", "random split"),
        *((rule, BASELINE) for rule in full if rule != BASELINE),
    ]
    for ours, theirs in pairs:
        if ours not in full or theirs not in full:
            continue
        differences = [part[ours].score - part[theirs].score for part in parts]
        difference = full[ours].score - full[theirs].score
        low, high = jackknife(difference, differences)
        octaves = [part[ours].octave - part[theirs].octave for part in parts]
        shift = full[ours].octave - full[theirs].octave
        left, right = jackknife(shift, octaves)
        print(f"{ours} - {theirs}: {difference:+.4f} [{low:+.4f}, {high:+.4f}], ", end="")
        print(f"learning rate {shift:+.2f} octaves [{left:+.2f}, {right:+.2f}]")
        if planned and (ours, theirs) == PRIMARY:
            both_inside = full[ours].inside and full[theirs].inside
            at_edge = "a peak is at the edge: nothing is decided"
            print(f"  primary: {decision(low, high) if both_inside else at_edge}")
            near = peaks_of(scores, seeds, near=5)
            print(
                "  five learning rates around each best: "
                f"{near[ours].score - near[theirs].score:+.4f}"
            )


def draw(scores: Scores, seeds: list[int]) -> go.Figure:
    """Plot the mean of each rule at each learning rate, with its standard error over seeds, and its
    parabola with the peak.
    """
    drawing = go.Figure()
    rates = sorted({rate for row in scores.values() for rate in row})
    for color, (rule, peak) in zip(PALETTE, peaks_of(scores, seeds).items(), strict=False):
        by_rate = [[scores[rule][rate][seed] for seed in seeds] for rate in rates]
        errors = [stdev(row) / math.sqrt(len(row)) for row in by_rate]
        drawing.add_scatter(
            x=rates,
            y=[mean(row) for row in by_rate],
            error_y={"array": errors, "thickness": 1},
            mode="markers",
            name=rule,
            marker={"color": color, "size": 7},
        )
        octaves, curve = peak.parabola.linspace()
        drawing.add_scatter(
            x=2**octaves, y=curve, mode="lines", line={"color": color}, showlegend=False
        )
        drawing.add_scatter(
            x=[2**peak.octave],
            y=[peak.score],
            mode="markers",
            marker={"color": color, "size": 13, "symbol": "star"},
            showlegend=False,
        )
    drawing.update_xaxes(
        type="log",
        title="learning rate",
        tickvals=rates,
        ticktext=[f"{rate:.3g}" for rate in rates],
        gridcolor="lightgray",
    )
    drawing.update_yaxes(title="eval/accuracy", gridcolor="lightgray")
    drawing.update_layout(height=420, margin={"l": 60, "r": 20, "t": 20, "b": 50})
    return drawing


def simulate(
    spread: float, gap: float, seeds: int = 6, rates: int = 7, times: int = 2000
) -> Mapping[str, float]:
    """Return decision -> how often the plan reaches it, if peaks differ by ``gap`` and scores
    between seeds by ``spread``.
    """
    generator = np.random.default_rng(0)
    octaves = np.arange(rates) / 2
    counts: dict[str, int] = defaultdict(int)
    for _ in range(times):
        scores: Scores = {}
        for rule, peak, at in ((PRIMARY[0], gap, 1.0), (PRIMARY[1], 0.0, 1.5)):
            curve = peak - 0.02 * (octaves - at) ** 2
            drawn = curve[:, None] + spread * generator.standard_normal((rates, seeds))
            scores[rule] = {
                float(2**octave): dict(enumerate(row))
                for octave, row in zip(octaves, drawn, strict=True)
            }
        everyone = list(range(seeds))
        full = peaks_of(scores, everyone)
        parts = [
            peaks_of(scores, [other for other in everyone if other != seed]) for seed in everyone
        ]
        ours, theirs = PRIMARY
        interval = jackknife(
            full[ours].score - full[theirs].score,
            [part[ours].score - part[theirs].score for part in parts],
        )
        counts[decision(*interval)] += 1
    return {name: count / times for name, count in sorted(counts.items())}


def main() -> None:
    """Analyze the folders of one sweep or of its parts. Without a folder, print how often the plan
    reaches each decision in simulations.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweeps", type=Path, nargs="*", metavar="FOLDER")
    parser.add_argument("--picture", type=Path, metavar="FILE.png")
    arguments = parser.parse_args()
    if not arguments.sweeps:
        for spread in (0.015, 0.025):
            for gap in (0.0, 0.015, 0.03):
                print(f"seeds differ by {spread}, peaks by {gap}: {dict(simulate(spread, gap))}")
        return
    scores = read_scores(arguments.sweeps)
    complete = complete_seeds(scores)
    for rule, rates in scores.items():
        means = (mean([rates[rate][seed] for seed in complete[rule]]) for rate in sorted(rates))
        row = " ".join(f"{value:.3f}" for value in means) if complete[rule] else "none"
        print(f"{rule}: means of seeds {complete[rule]} at each learning rate {row}")
    seeds = sorted({seed for rates in scores.values() for row in rates.values() for seed in row})
    full = having(scores, seeds)
    print("not complete:", ", ".join(rule for rule in scores if rule not in full) or "none")
    if len(seeds) >= PLANNED_SEEDS:
        report(full, seeds)
        if arguments.picture:
            write_png(draw(full, seeds), arguments.picture)
    else:
        print(f"{len(seeds)} of {PLANNED_SEEDS} planned seeds: nothing is analyzed yet")
    common = sorted(set.intersection(*(set(complete.get(rule, ())) for rule in PRIMARY)))
    if 1 < len(common) < max(len(seeds), PLANNED_SEEDS):
        print(f"INTERIM, not the planned analysis, decides nothing: seeds {common}")
        report(having(scores, common), common, planned=False)


if __name__ == "__main__":
    main()
