"""A diagnosis as one HTML page that needs no network, and as tables."""

import csv
import html
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import torch

from trainer.files import write_atomically
from trainer.metrics.bands import PUBLISHED_BANDS
from trainer.paper.diagnose import HIGHEST, LOWEST, SGD_LR, Diagnosis

BLUE, ORANGE, GREEN, RED, GREY = "#3d85c6", "#e07b00", "#2a9d6f", "#d43d4f", "#8b93a1"
VIOLET, PINK = "#8a6fd1", "#c0508d"
_STEPPING = {
    "sgd": f"by SGD with learning rate {SGD_LR:g}",
    "adamw": "with the step sizes AdamW has learned and without its momentum",
}
# A chart is drawn before its neighbours are there, as wide as the row; all are fitted once the page is whole.
_FIT = "<script>addEventListener('load', () => dispatchEvent(new Event('resize')))</script>"
_MAX_POINTS = 2000  # of a scatter plot
MAX_ROWS = 20_000  # of tokens.csv
_IN_FIGURE_1 = {"all tokens": GREY, LOWEST: BLUE, HIGHEST: ORANGE}


def write_diagnosis(found: Diagnosis, title: str, folder: Path) -> Path:
    """Write ``diagnose.html``, ``bands.csv``, ``updates.csv`` and ``tokens.csv``; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_csv(folder / "bands.csv", found.band_rows())
    _write_csv(folder / "updates.csv", found.share_rows())
    _write_csv(folder / "tokens.csv", _token_rows(found))
    page = folder / "diagnose.html"
    write_atomically(page, _page(found, title))
    return page


def summary(found: Diagnosis) -> list[str]:
    """The figures a terminal shows, a line each."""
    low, high = found.bound_ratios()
    rows = found.band_rows()[: len(PUBLISHED_BANDS)]
    lower, upper = found.bounds()
    lines = [
        f"tokens:      {len(found.rest)} in one batch, after {found.after_steps} steps",
        f"correlation: {found.correlation():.4f} of gradient norm (logits) with 1 - probability",
        f"             {found.parameter_correlation():.4f} of gradient norm (all parameters, "
        f"{int((~found.parameter_norms.isnan()).sum())} tokens); between ranks "
        f"{found.parameter_rank_correlation():.4f}",
        f"bounds:      norm / (1 - probability) is {low:.4f} to {high:.4f}; proven {lower:.4f} to {upper:.4f}",
        f"gradient:    {rows[0]['gradient_share']:.1%} of |A| x norm is of the {_share(found, 0)} of the tokens "
        f"below 0.25, {rows[-1]['gradient_share']:.1%} of the {_share(found, 3)} above 0.75",
    ]
    width = max(len(update.name) for update in found.updates)
    for row in found.share_rows():
        lines.append(
            f"{row['update']:<{width}}  mean change {row['change_abs']:.2e}, moved {row['moved']:.1%}; of these, "
            f"A > 0 that rose {row['positive_rose']:.1%}, A < 0 that fell {row['negative_fell']:.1%}"
        )
    return lines


def _page(found: Diagnosis, title: str) -> str:
    sections = [
        ("Figure 1: what each band of probability sends and receives", *_figure_1(found)),
        ("Figure 2: gradient norm against 1 − probability", *_figure_2(found)),
        ("Figure 3: tokens that went the way of their advantage", *_figure_3(found)),
    ]
    # All buttons would cover the legend, and one would upload the chart.
    options = {"displaylogo": False, "responsive": True, "modeBarButtons": [["toImage", "resetScale2d"]]}
    parts = []
    for heading, sentence, figures in sections:
        drawn = "".join(
            f"<div><h3>{html.escape(name)}</h3>"
            f"{figure.to_html(full_html=False, include_plotlyjs=False, config=options)}</div>"
            for name, figure in figures.items()
        )
        parts.append(
            f"<section><h2>{html.escape(heading)}</h2><p>{html.escape(sentence)}</p>"
            f'<div class="row">{drawn}</div></section>'
        )
    from plotly.offline import get_plotlyjs

    lead = (
        f"{len(found.rest)} tokens of one rollout batch after {found.after_steps} training steps. Copies of the "
        f"policy take one pass over it {_STEPPING[found.optimizer]} [arXiv:2505.12929, section 4]."
    )
    style = (resources.files("trainer.paper") / "diagnose.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title>'
        f"<style>{style}</style><script>{get_plotlyjs()}</script></head><body><h1>{html.escape(title)}</h1>"
        f"<p>{html.escape(lead)}</p>{''.join(parts)}{_FIT}</body></html>"
    )


def _figure_1(found: Diagnosis) -> tuple[str, dict[str, go.Figure]]:
    rows = found.band_rows()
    before = rows[: len(PUBLISHED_BANDS)]
    changes = {name: [row["change_abs"] for row in rows if row["update"] == name] for name in _IN_FIGURE_1}
    updates = {f"updated: {name}": (colour, changes[name]) for name, colour in _IN_FIGURE_1.items()}
    figures = {
        "Mean |advantage|": _bars({"": (GREY, [row["advantage_abs"] for row in before])}),
        "Mean gradient norm by the logits": _bars({"": (GREY, [row["gradient_norm"] for row in before])}, "log"),
        "Mean |change of probability|": _bars(updates, "log"),
    }
    sentence = (
        f"The {_share(found, 0)} of the tokens below 0.25 carry {before[0]['gradient_share']:.1%} of the gradient "
        f"mass |A| × norm, the {_share(found, 3)} above 0.75 {before[3]['gradient_share']:.1%}. The probabilities "
        f"above 0.75 change by {changes[LOWEST][3]:.2g} on average when only the tokens below 0.25 are updated, "
        f"and by {changes[HIGHEST][3]:.2g} when they are updated themselves."
    )
    return sentence, figures


def _figure_2(found: Diagnosis) -> tuple[str, dict[str, go.Figure]]:
    low, high = found.bound_ratios()
    lower, upper = found.bounds()
    positive = found.rest > 0
    by_logits = _scatter(
        found.rest[positive], found.gradient_norms[positive], [(lower, "√(N/(N−1)) (1−π)"), (upper, "√2 (1−π)")]
    )
    measured = ~found.parameter_norms.isnan() & positive
    rest, norms = found.rest[measured], found.parameter_norms[measured]
    ratios = norms / rest
    by_parameters = _scatter(
        rest,
        norms,
        [(float(ratios.min()), "smallest ratio met"), (float(ratios.max()), "largest ratio met")] if len(rest) else [],
    )
    sentence = (
        "By the logits, the norm of a log-probability's gradient lies between √(N/(N−1)) and √2 times 1 − π, with "
        f"N = {found.vocabulary} (Proposition 4.2 for the last layer); here the ratio runs from {low:.3f} "
        f"to {high:.3f}, and the correlation with 1 − π is {found.correlation():.4f}. Below the logits only "
        "the upper bound holds: a head with more rows than columns can make a gradient vanish. By all parameters, "
        f"on {int(measured.sum())} tokens, it is {found.parameter_correlation():.4f}, between ranks "
        f"{found.parameter_rank_correlation():.4f}."
    )
    return sentence, {"Gradient norm by the logits": by_logits, "Gradient norm by all parameters": by_parameters}


def _figure_3(found: Diagnosis) -> tuple[str, dict[str, go.Figure]]:
    shown = [row["update"] for row in found.share_rows() if not row["update"].startswith("only")]
    shown = [name for name in shown if not name.endswith("pass")]  # half of an update
    rows = found.band_rows()
    figures = {}
    for key, title in (("positive_rose", "A > 0 that rose"), ("negative_fell", "A < 0 that fell")):
        series = {
            name: (colour, [row[key] for row in rows if row["update"] == name])
            for name, colour in zip(shown, (GREY, VIOLET, PINK), strict=True)
        }
        figures[title] = _bars(series)
        figures[title].update_yaxes(tickformat=".0%", range=[0, 1])
        figures[title].add_hline(y=0.5, line={"color": GREY, "dash": "dot"})
    shares = "; ".join(
        f"{row['update']} {row['positive_rose']:.1%} and {row['negative_fell']:.1%}" for row in found.share_rows()
    )
    sentence = (
        "Of the tokens whose log-probability the update changed: the share of those with positive advantage that "
        f"rose, and of those with negative advantage that fell, by band; all bands together: {shares}."
    )
    return sentence, figures


def _bars(series: Mapping[str, tuple[str, Sequence[float]]], scale: str = "linear") -> go.Figure:
    figure = _figure()
    for name, (colour, values) in series.items():
        figure.add_bar(x=PUBLISHED_BANDS, y=list(values), name=name, marker_color=colour, showlegend=bool(name))
    figure.update_xaxes(title="probability before")
    figure.update_yaxes(type=scale, exponentformat="power", dtick=1 if scale == "log" else None)
    return figure


def _scatter(x: torch.Tensor, y: torch.Tensor, lines: Sequence[tuple[float, str]]) -> go.Figure:
    figure = _figure()
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:_MAX_POINTS]
    figure.add_scatter(
        x=x[chosen].tolist(),
        y=y[chosen].tolist(),
        mode="markers",
        name="tokens",
        marker={"size": 4, "color": GREY, "opacity": 0.5},
    )
    if len(x):
        ends = [float(x.min()), 1.0]
        for (slope, name), colour in zip(lines, (GREEN, RED), strict=False):
            figure.add_scatter(
                x=ends, y=[slope * end for end in ends], mode="lines", name=name, line={"color": colour, "width": 1.5}
            )
    figure.update_xaxes(type="log", title="1 − probability", exponentformat="power", dtick=1)
    figure.update_yaxes(type="log", exponentformat="power", dtick=1)
    return figure


def _figure() -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        template="plotly_white",
        height=360,
        margin={"l": 60, "r": 10, "t": 10, "b": 50},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#1d2430"},
    )
    return figure


def _share(found: Diagnosis, band: int) -> str:
    return f"{float((found.bands == band).float().mean()):.1%}"


def _token_rows(found: Diagnosis) -> list[dict[str, Any]]:
    order = found.logprobs.argsort(stable=True)
    changes = {f"change: {update.name}": found.change(update) for update in found.updates}
    stride = math.ceil(len(order) / MAX_ROWS)
    rows = []
    for index in order[::stride].tolist():
        norm = float(found.parameter_norms[index])
        rows.append(
            {
                "probability": math.exp(float(found.logprobs[index])),
                "band": PUBLISHED_BANDS[int(found.bands[index])],
                "advantage": float(found.advantages[index]),
                "gradient_norm": float(found.gradient_norms[index]),
                "parameter_gradient_norm": "" if math.isnan(norm) else norm,
                **{name: float(change[index]) for name, change in changes.items()},
            }
        )
    return rows


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
