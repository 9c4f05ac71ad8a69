"""Confirmed configurations over training steps: accuracy, entropy and improbable tokens, a line
each.

``python -m research.arm_curves runs/NAME-confirm PARAMETER FILE.png`` names every configuration
by one searched parameter, draws the mean over its seeds, and prints a table: the score (mean of the
last three evaluations), and entropy and fraction of improbable tokens at the beginning, middle and
end of training (five steps each).
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboards.labels import PALETTE
from loptune.files import read_json_lines
from research.png import write_png
from trainer.metrics.bands import BANDS

ACCURACY = "eval/accuracy"
ENTROPY = "policy/entropy"
IMPROBABLE = "improbable"
PANELS = {
    ACCURACY: "eval/accuracy",
    ENTROPY: "entropy [nats]",
    IMPROBABLE: "fraction of tokens below 0.5",
}
FRACTIONS = [f"tokens/token_fraction/{band}" for band in BANDS[:2]]  # below 0.5
WINDOW = 5  # steps that a number of the table is the mean of
Curves = dict[str, dict[int, float]]  # metric -> step -> mean over seeds


def read_curves(sweep: Path, parameter: str) -> dict[str, Curves]:
    """Value of the parameter -> its curves."""
    begun = [
        event
        for event, _ in read_json_lines(sweep / "events.jsonl")
        if event["event"] == "configuration"
    ]
    return {
        str(event["parameters"][parameter]): curves_of(
            sorted((sweep / "trials").glob(f"c{event['configuration']:03}-s*"))
        )
        for event in begun
    }


def curves_of(trials: Sequence[Path]) -> Curves:
    """The mean curves of the seeds of one configuration."""
    values: dict[str, dict[int, list[float]]] = {metric: defaultdict(list) for metric in PANELS}
    for trial in trials:
        for row, _ in read_json_lines(trial / "metrics.jsonl"):
            if FRACTIONS[0] in row:
                row[IMPROBABLE] = sum(row[fraction] for fraction in FRACTIONS)
            for metric in PANELS:
                if metric in row:
                    values[metric][row["step"]].append(row[metric])
    return {
        metric: {step: mean(several) for step, several in sorted(by_step.items())}
        for metric, by_step in values.items()
    }


def draw(arms: dict[str, Curves]) -> go.Figure:
    """A panel per metric, a line per configuration; per-step metrics as means of `WINDOW` steps."""
    drawing = make_subplots(
        rows=1, cols=len(PANELS), subplot_titles=[*PANELS.values()], horizontal_spacing=0.07
    )
    for color, (name, curves) in zip(PALETTE, arms.items(), strict=False):
        for column, metric in enumerate(PANELS, start=1):
            steps = list(curves[metric])
            values = list(curves[metric].values())
            if metric != ACCURACY:
                values = [
                    mean(values[max(0, end - WINDOW) : end]) for end in range(1, len(values) + 1)
                ]
            line = {"color": color, "width": 2.5}
            drawing.add_scatter(
                x=steps,
                y=values,
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                line=line,
                row=1,
                col=column,
            )
    drawing.update_xaxes(title_text="training step")
    drawing.update_layout(
        template="none",
        height=430,
        margin={"l": 50, "r": 14, "t": 100, "b": 46},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.1, "xanchor": "left", "x": 0},
    )
    return drawing


def table_row(curves: Curves) -> list[float]:
    """The score, then entropy and improbable tokens at the beginning, in the middle and at
    the end.
    """
    numbers = [mean(list(curves[ACCURACY].values())[-3:])]
    for metric in (ENTROPY, IMPROBABLE):
        values = list(curves[metric].values())
        middle = len(values) // 2
        numbers += [
            mean(part)
            for part in (values[:WINDOW], values[middle - WINDOW : middle], values[-WINDOW:])
        ]
    return numbers


def main(arguments: Sequence[str]) -> int:
    sweep = Path(arguments[0])
    parameter = arguments[1]
    path = Path(arguments[2])
    arms = read_curves(sweep, parameter)
    for name, curves in arms.items():
        print(f"{name:<16}", *(f"{value:8.4f}" for value in table_row(curves)))
    write_png(draw(arms), path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
