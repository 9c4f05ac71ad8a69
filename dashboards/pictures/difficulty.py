"""A picture of what the trials can do by the difficulty of the problems."""

import pandas as pd

from dashboards.labels import colours
from dashboards.pictures.theme import Picture, figure, word_axis
from dashboards.sweep import TEST_SET, Sweep

PREFIX = "eval/accuracy/"


def by_difficulty(sweep: Sweep) -> Picture | None:
    """Accuracy by difficulty, or by evaluation set, a bar per update rule; None where there is one part alone."""
    table = difficulty_means(sweep)
    parts = sorted(table.part.unique(), key=_in_order)
    if len(parts) < 2:
        return None
    drawing = figure("difficulty or set", "accuracy at the last evaluation", height=360)
    shades = colours(sweep.trials.variant)
    for variant, own in table.groupby("variant"):
        values = own.set_index("part").value.reindex(parts)
        drawing.add_bar(x=parts, y=values, name=str(variant), marker={"color": shades[str(variant)]})
    word_axis(drawing, parts)
    drawing.update_yaxes(rangemode="tozero")
    drawing.update_layout(barmode="group")
    means = table.groupby("part").value.mean()
    hardest = table[table.part == means.idxmin()].sort_values("value", ascending=False)
    text = (
        f"Mean over the trials of an update rule that ran to their end: the hardest part is {means.idxmin()}, "
        f"{', '.join(f'{row.variant} {row.value:.3f}' for row in hardest.itertuples())}; the easiest "
        f"{means.idxmax()}, {means.max():.3f} over all rules."
    )
    return Picture("difficulty", "Accuracy by difficulty", text, (drawing,))


def difficulty_means(sweep: Sweep) -> pd.DataFrame:
    """variant, part, value: mean over complete trials of their last accuracy; not of the sealed problems."""
    own = sweep.latest[sweep.latest.metric.astype(str).str.startswith(PREFIX)]
    parts = own.assign(part=own.metric.astype(str).str.removeprefix(PREFIX))
    parts = parts[~parts.part.str.fullmatch(rf"{TEST_SET}(\..*)?")]
    complete = sweep.trials.loc[sweep.trials.state == "COMPLETE", ["trial", "variant"]]
    means = parts.merge(complete, on="trial").groupby(["variant", "part"]).value.mean()
    return means.reset_index()


def _in_order(part: str) -> tuple[bool, float, str]:
    """Numbers by size, then words."""
    try:
        return False, float(part), part
    except ValueError:
        return True, 0.0, part
