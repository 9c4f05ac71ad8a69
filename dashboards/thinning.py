"""Which trials a picture with a line per trial shows: a thousand are slow to draw, and no eye tells them apart."""

import numpy as np
import pandas as pd

MAX_LINES = 300


def thinned(trials: pd.DataFrame, mode: str) -> pd.DataFrame:
    """At most ``MAX_LINES`` of the trials, in their order: spread evenly over the ranks of their scores.

    The best one is among them; trials without a score rank last, and have their share.
    """
    if len(trials) <= MAX_LINES:
        return trials
    ranked = trials.sort_values("score", ascending=mode == "min", kind="stable", na_position="last").index
    kept = ranked[np.linspace(0, len(ranked) - 1, MAX_LINES).round().astype(int)]
    return trials.loc[trials.index.isin(kept)]


def thinning_note(trials: pd.DataFrame) -> str:
    """A sentence for a picture that leaves trials out; empty where it shows all."""
    if len(trials) <= MAX_LINES:
        return ""
    return f" {MAX_LINES} of {len(trials)} trials are drawn, spread evenly from the best score to the worst."
