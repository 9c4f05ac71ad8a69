"""Plot of the update's gradients and advantages by token probability."""

import re

import pandas as pd

from dashboards.labels import colors
from dashboards.pictures.theme import MUTED, Picture, category_axis, figure
from dashboards.results import Results

_BAND = re.compile(r"tokens/(\w+)/([\d.]+-[\d.]+)")
_LOW = ("0.00-0.25", "0.25-0.50")  # bands below probability 0.5
_QUANTITIES = {
    "gradient_fraction": "fraction of the gradient norm",
    "advantage_fraction": "fraction of the advantage mass",
}


def probability_bands(results: Results) -> Picture | None:
    """Plot gradient norm and advantage mass by band of token probability; None if no trial logged
    the ``tokens/*`` metrics.
    """
    table = band_means(results)
    # no such metrics, or only under the names of older versions
    if "token_fraction" not in set(table.quantity):
        return None
    shades = colors(results.table.rule)
    drawings = []
    tokens = table[table.quantity == "token_fraction"].groupby("band").value.mean()
    for quantity, label in _QUANTITIES.items():
        of_quantity = table[table.quantity == quantity]
        if of_quantity.empty:
            continue
        drawing = figure("token probability", label, height=330)
        for variant, values in of_quantity.groupby("rule"):
            drawing.add_bar(
                x=values.band,
                y=values.value,
                name=str(variant),
                marker={"color": shades[str(variant)]},
            )
        drawing.add_scatter(
            x=tokens.index,
            y=tokens,
            mode="markers",
            name="fraction of the tokens",
            marker={"symbol": "line-ew", "size": 34, "line": {"width": 3, "color": MUTED}},
        )
        category_axis(drawing, list(tokens.index))
        drawing.update_yaxes(tickformat=".0%", rangemode="tozero")
        drawings.append(drawing)
    title = "Where the update comes from: token-probability bands"
    return Picture("bands", title, _bands_sentence(table), tuple(drawings))


def band_means(results: Results) -> pd.DataFrame:
    """Return rows of rule, quantity, band and value: the mean over trials of the latest
    ``tokens/*`` metrics.
    """
    rows = []
    for trial in results.trials:
        for metric, value in trial.latest.items():
            match = _BAND.fullmatch(metric)
            if match:
                rows.append((trial.rule, *match.groups(), value))
    band_values = pd.DataFrame(rows, columns=["rule", "quantity", "band", "value"])
    means = band_values.groupby(["rule", "quantity", "band"]).value.mean()
    return means.reset_index()


def _bands_sentence(table: pd.DataFrame) -> str:
    low = table[table.band.isin(_LOW)].groupby(["quantity", "rule"]).value.sum()
    tokens = low["token_fraction"].mean() if "token_fraction" in low else float("nan")
    text = f"At the last step, tokens with probability below 0.5 are {tokens:.1%} of all tokens"
    if "gradient_fraction" in low:
        fractions = ", ".join(
            f"{value:.0%} in {name}" for name, value in low["gradient_fraction"].items()
        )
        text += f" and contribute this fraction of the gradient norm at the last layer: {fractions}"
    if "advantage_fraction" in low:
        values = low["advantage_fraction"]
        text += f"; they have {values.min():.1%} to {values.max():.1%} of the advantage mass"
    return (
        f"{text}. AR is meant to lower their gradient and advantage mass; Lopti updates these "
        "tokens in a separate pass."
    )
