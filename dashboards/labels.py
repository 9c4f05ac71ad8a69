"""Labels of configurations: the update rule and every other setting that differs between trials."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from loptune.errors import shortened
from loptune.parameter_names import short_names, shown

# keys that the update rule's display name reflects
RULE = ("algorithm.advantage", "algorithm.loss", "algorithm.ar_alpha", "algorithm.lopti_eta")
# rule keys that set a strength (0 is off) -> symbol in labels
RULE_SIGNS = {"algorithm.ar_alpha": "α", "algorithm.lopti_eta": "η"}
_MAX_VALUE = 60  # characters of a value in a label; a searched prompt may have thousands
PALETTE = (
    "#3d85c6", "#e07b00", "#2a9d6f", "#c0508d", "#8a6fd1", "#b59b00",
    "#4fb0c6", "#a0683c", "#d9534f", "#6f8f2f", "#8c8c8c", "#b07cc6",
    "#1f4e79", "#e8a0bf", "#5b7065", "#d4a373",
)  # fmt: skip


def colors(names: Iterable[str]) -> dict[str, str]:
    """Return one color per name. The same set of names always gets the same colors."""
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(sorted(set(names)))}


class Names:
    """The names of configurations in one text: the label at the first mention, later only the
    number. Create sentences in the order in which they are printed.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._mentioned: set[str] = set()

    def __call__(self, number: str) -> str:
        """Return the label of a configuration at its first mention, later only ``#NUMBER``."""
        label = self._labels.get(number, f"#{number}")
        if number in self._mentioned:
            return label.split(" ")[0]
        self._mentioned.add(number)
        return label


def _short(value: Any) -> str:
    """Return a value on one line of at most ``_MAX_VALUE`` characters."""
    return shortened(" ".join(shown(value).split()), _MAX_VALUE)


def configuration_labels(trials: pd.DataFrame, searched: Sequence[str]) -> "pd.Series[str]":
    """Return a short configuration label for each trial, such as ``#3 grpo α 0.3 lr=1e-05``.

    If arms are tuned separately, a label lists only settings that vary within the arm. If each arm
    has a single configuration, as on fresh seeds, a label lists the settings that vary among arms.
    """
    named = {name: short for name, short in short_names(searched).items() if name not in RULE}
    tuned = trials.groupby("arm").configuration.nunique().max() > 1
    group = trials.arm if tuned else pd.Series("", index=trials.index)
    varies = trials.groupby(group)[list(named)].nunique() > 1

    def strength(row: "pd.Series[Any]", key: str) -> float:
        value = row.get(key)
        return float(value) if isinstance(value, int | float) else 0.0

    def label(row: "pd.Series[Any]") -> str:
        parts = [f"#{row.configuration} {row.arm or row.algorithm}".rstrip()]
        parts += [
            f"{sign} {row[key]:.3g}" for key, sign in RULE_SIGNS.items() if strength(row, key) > 0
        ]
        differs = varies.loc[row.arm if tuned else ""]
        varying = [name for name in named if differs[name] and pd.notna(row[name])]
        parts += [f"{named[name]}={_short(row[name])}" for name in varying]
        return " ".join(parts)

    labels = [label(row) for _, row in trials.iterrows()]
    return pd.Series(labels, index=trials.index, dtype=object)
