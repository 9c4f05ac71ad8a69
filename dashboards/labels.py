"""Configurations in words: the update rule, and every other setting that differs between the trials of a sweep."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

# What the name of the update rule says already.
RULE = ("algorithm.advantage", "algorithm.name", "algorithm.loss", "algorithm.ar_alpha", "algorithm.lopti_eta")


def short_name(parameter: str) -> str:
    """The last part of a dotted parameter, or the section where that says nothing."""
    *_, section, last = ["", *parameter.split(".")]
    return section if last == "name" and section else last


def short_names(parameters: Sequence[str]) -> dict[str, str]:
    """Parameter -> its short name, or the whole where another has the same."""
    count = Counter(map(short_name, parameters))
    return {name: name if count[short_name(name)] > 1 else short_name(name) for name in parameters}


def shown(value: Any) -> str:
    """A parameter's value, as short as it reads well."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def configuration_labels(trials: pd.DataFrame, searched: Sequence[str]) -> "pd.Series[str]":
    """The configuration of every trial in a few words, e.g. ``#3 grpo α 0.3 lr=1e-05``."""
    named = {name: short for name, short in short_names(searched).items() if name not in RULE}
    named = {name: short for name, short in named.items() if trials[name].nunique() > 1}

    def label(row: "pd.Series[Any]") -> str:
        parts = [f"#{row.configuration} {row.algorithm}"]
        parts += [f"{sign} {row[key]:.2g}" for sign, key in (("α", "alpha"), ("η", "eta")) if row[key] > 0]
        parts += [f"{short}={shown(row[name])}" for name, short in named.items() if pd.notna(row[name])]
        return " ".join(parts)

    labels = [label(row) for _, row in trials.iterrows()]
    return pd.Series(labels, index=trials.index, dtype=object)
