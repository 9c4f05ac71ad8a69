"""A diagnosis as tables, and in the words of a terminal."""

import math
from pathlib import Path

import pandas as pd

from trainer.metrics.bands import PUBLISHED_BANDS
from trainer.paper.diagnose import Diagnosis

MAX_ROWS = 20_000  # of tokens.csv


def write_tables(found: Diagnosis, folder: Path) -> None:
    """Write ``bands.csv``, ``updates.csv`` and ``tokens.csv``."""
    pd.DataFrame(found.band_rows()).to_csv(folder / "bands.csv", index=False)
    pd.DataFrame(found.share_rows()).to_csv(folder / "updates.csv", index=False)
    _tokens(found).to_csv(folder / "tokens.csv", index=False)


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


def _share(found: Diagnosis, band: int) -> str:
    return f"{float((found.bands == band).float().mean()):.1%}"


def _tokens(found: Diagnosis) -> pd.DataFrame:
    """A row per token, the least probable first; of a large batch every nth."""
    order = found.logprobs.argsort(stable=True)[:: math.ceil(len(found.logprobs) / MAX_ROWS)]
    columns = {
        "probability": found.logprobs.exp(),
        "band": found.bands,
        "advantage": found.advantages,
        "gradient_norm": found.gradient_norms,
        "parameter_gradient_norm": found.parameter_norms,
        **{f"change: {update.name}": found.change(update) for update in found.updates},
    }
    table = pd.DataFrame({name: values[order].numpy() for name, values in columns.items()})
    return table.assign(band=table.band.map(dict(enumerate(PUBLISHED_BANDS))))
