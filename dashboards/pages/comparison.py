"""Several sweeps on one page: the best and the baseline of each, and against each other where seeds match."""

import html
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from dashboards.labels import colours
from dashboards.pages.export import write_csvs, write_pngs
from dashboards.pages.html import render_page, render_table
from dashboards.pages.report import DATA_FOLDER, IMAGE_FOLDER
from dashboards.pictures.judged import baseline, comparable
from dashboards.pictures.theme import Picture, figure, label_rows, number, rows, signed, translucent
from dashboards.pictures.verdict import verdict
from dashboards.queries import Sweep, read_sweep
from dashboards.statistics.seed_noise import PairedDifference, paired_differences
from trainer.errors import ConfigError
from trainer.files import write_atomically

COMPARISON_FILE = "comparison.html"
MAX_NAMED = 4  # differing settings named in a sentence


@dataclass(frozen=True)
class Contender:
    """A configuration of one sweep: its best, or its baseline."""

    sweep: str
    role: str  # best or baseline
    label: str
    scores: Mapping[Hashable, float]  # seed -> score

    @property
    def name(self) -> str:
        """Which sweep and which of its configurations."""
        return f"{self.sweep}: {self.label}" + (" (baseline)" if self.role == "baseline" else "")

    @property
    def mean(self) -> float:
        """Over its seeds."""
        return sum(self.scores.values()) / len(self.scores)


def write_comparison(names: Sequence[str], uri: str, out_dir: Path, *, png: bool = False) -> Path:
    """Write ``comparison.html`` and ``data/*.csv`` for sweeps recorded in one MLflow store.

    Returns:
        The path of the HTML file.

    Raises:
        ConfigError: the sweeps do not optimise the same number.
        MissingError: the store lacks one of them, or PNGs are wanted without a Chrome.
        StorageError: the store cannot be read.
    """
    sweeps = [read_sweep(name, uri) for name in names]
    _check_objectives(sweeps)
    pictures = [contenders_picture(sweeps), sweeps_picture(sweeps)]
    out_dir.mkdir(parents=True, exist_ok=True)
    write_csvs(pictures, out_dir / DATA_FOLDER)
    objective = sweeps[0].objective
    meta = (
        f"{objective.mode} of {objective.metric} (mean of the last {objective.window} evaluations), read from "
        f"MLflow on {datetime.now(UTC):%Y-%m-%d %H:%M UTC}."
    )
    title = " / ".join(names)
    path = out_dir / COMPARISON_FILE
    page = render_page(title, meta, compared(sweeps), pictures, _table(sweeps), table_title="The sweeps")
    write_atomically(path, page)
    if png:
        write_pngs(pictures, out_dir / IMAGE_FOLDER)
    return path


def contenders(sweep: Sweep) -> list[Contender]:
    """The best configuration by its mean score, and the baseline where that is another."""
    judged = comparable(sweep)
    if judged.empty:
        return []
    whole = judged[judged.configuration.isin(sweep.configurations().configuration)]
    means = (judged if whole.empty else whole).groupby("label").score.mean().sort_values(kind="stable")
    best, base = str(means.index[-1 if sweep.objective.mode == "max" else 0]), baseline(sweep)
    roles = {best: "best"} if base in (None, best) else {best: "best", str(base): "baseline"}
    return [
        Contender(sweep.name, role, label, dict(zip(own.seed, own.score, strict=True)))
        for label, role in roles.items()
        for own in [judged[judged.label == label]]
    ]


def compared(sweeps: Sequence[Sweep]) -> list[str]:
    """The leader, what tells it from the best of each other sweep, and each sweep's own first sentence."""
    best = [found[0] for found in map(contenders, sweeps) if found]
    if not best:
        return ["No configuration has run to its end with a score yet."]
    objective = sweeps[0].objective
    best.sort(key=lambda contender: contender.mean, reverse=objective.mode == "max")
    leader = best[0]
    by_name = {sweep.name: sweep for sweep in sweeps}
    lines = [f"Highest mean: {leader.name} with {objective.metric} {number(leader.mean)}."]
    if objective.mode == "min":
        lines = [lines[0].replace("Highest", "Lowest")]
    for other in best[1:]:
        lines.append(_against(by_name[leader.sweep], leader, by_name[other.sweep], other))
    return lines + [f"{sweep.name}: {verdict(sweep)[0]}" for sweep in sweeps]


def _against(ours: Sweep, leader: Contender, theirs: Sweep, other: Contender) -> str:
    apart = differing_settings(ours, theirs)
    lead = f"{signed(leader.mean - other.mean)} against {other.name} ({number(other.mean)})"
    if apart:
        more = f" and {len(apart) - MAX_NAMED} more" if len(apart) > MAX_NAMED else ""
        named = "; ".join(f"{name} {a} / {b}" for name, (a, b) in list(apart.items())[:MAX_NAMED])
        return f"{lead}; seeds do not match where sweeps differ in more than what they searched: {named}{more}."
    paired = matched(leader, other)
    if paired is None:
        return f"{lead}; they share no seed."
    mean, seeds = paired.mean, f"{len(paired.by_seed)} matched seed{'s' * (len(paired.by_seed) > 1)}"
    lead = f"{signed(mean.value)} against {other.name} ({number(other.mean)}) on {seeds}"
    if math.isnan(mean.low):
        return f"{lead}; one seed cannot tell a difference from chance."
    clear = mean.low > 0 or mean.high < 0
    return (
        f"{lead}, 95 % interval {signed(mean.low)} to {signed(mean.high)}: "
        f"{'more' if clear else 'not shown to be more'} than seed noise, before correcting for both having been "
        "picked as the best of their sweep."
    )


def differing_settings(ours: Sweep, theirs: Sweep) -> dict[str, tuple[str, str]]:
    """Parameters that both sweeps hold fixed, at different values; the update rule itself may differ."""
    return {
        name: (value, theirs.fixed[name])
        for name, value in ours.fixed.items()
        if name in theirs.fixed
        and value != theirs.fixed[name]
        and not name.startswith(("algorithm.", "diagnostics."))
    }


def matched(ours: Contender, theirs: Contender) -> PairedDifference | None:
    """Ours minus theirs on the seeds that both ran; None without one."""
    found = paired_differences({"ours": ours.scores, "theirs": theirs.scores}, "theirs")
    return found.get("ours")


def contenders_picture(sweeps: Sequence[Sweep]) -> Picture:
    """Best and baseline of every sweep, a dot per seed."""
    title = "Best and baseline of each sweep"
    found = [contender for sweep in sweeps for contender in contenders(sweep)]
    if not found:
        return Picture("contenders", title, "No trial has a score yet.")
    objective, shades = sweeps[0].objective, colours(sweep.name for sweep in sweeps)
    order = [contender.name for contender in reversed(found)]
    drawing = figure(objective.metric, height=90 + 58 * len(found), legend=False)
    for contender in found:
        shade = shades[contender.sweep]
        drawing.add_scatter(
            x=list(contender.scores.values()),
            y=[contender.name] * len(contender.scores),
            mode="markers",
            name=contender.name,
            marker={"color": translucent(shade, 0.55), "size": 9},
            hovertext=[
                html.escape(f"{contender.name}, seed {seed}: {number(y)}") for seed, y in contender.scores.items()
            ],
            hoverinfo="text",
        )
        drawing.add_scatter(
            x=[contender.mean],
            y=[contender.name],
            mode="markers",
            name=f"{contender.name}, mean",
            marker={"color": shade, "size": 16, "symbol": "line-ns", "line": {"width": 3, "color": shade}},
            hoverinfo="skip",
        )
    label_rows(drawing, order)
    means = "; ".join(
        f"{contender.name} {number(contender.mean)} over {len(contender.scores)} seeds" for contender in found
    )
    return Picture("contenders", title, f"Mean {objective.metric}: {means}.", (drawing,))


def sweeps_picture(sweeps: Sequence[Sweep]) -> Picture:
    """All scores of each sweep."""
    title, scored = "All scores", {sweep.name: sweep.complete() for sweep in sweeps}
    present = {name: trials for name, trials in scored.items() if not trials.empty}
    if not present:
        return Picture("scores", title, "No trial has a score yet.")
    drawing = figure(sweeps[0].objective.metric, height=90 + 70 * len(present), legend=False)
    shades = colours(sweep.name for sweep in sweeps)
    for name, trials in present.items():
        drawing.add_box(
            x=trials.score,
            y=[name] * len(trials),
            name=name,
            orientation="h",
            boxpoints="all",
            jitter=0.4,
            pointpos=0,
            marker={"color": shades[name], "size": 6},
            line={"width": 1},
            hovertext=[html.escape(f"{name}, trial {row.trial}: {number(row.score)}") for row in rows(trials)],
            hoverinfo="text",
        )
    label_rows(drawing, list(present)[::-1])
    medians = "; ".join(
        f"{name} median {number(trials.score.median())} of {len(trials)} trials ({number(trials.score.min())} to "
        f"{number(trials.score.max())})"
        for name, trials in present.items()
    )
    return Picture("scores", title, medians + ".", (drawing,))


def _table(sweeps: Sequence[Sweep]) -> str:
    headings = ["sweep", "trials", "failed", "best", "score", "seeds", "baseline", "baseline score", "hours"]
    return render_table(headings, [_row(sweep) for sweep in sweeps])


def _row(sweep: Sweep) -> list[tuple[str, str, str]]:
    found = {contender.role: contender for contender in contenders(sweep)}
    best, base = found.get("best"), found.get("baseline")
    failed = int((sweep.trials.state == "FAIL").sum())
    hours = float(sweep.device_hours().sum())
    return [
        _text(sweep.name),
        _number(len(sweep.trials)),
        _number(failed),
        _text(best.label if best else ""),
        _number(best.mean if best else None),
        _number(len(best.scores) if best else None),
        _text(base.label if base else ("the best itself" if best else "")),
        _number(base.mean if base else None),
        (f"{hours:.2f} {sweep.device}", repr(hours), "number"),
    ]


def _text(text: str) -> tuple[str, str, str]:
    return text, text, ""


def _number(value: float | None) -> tuple[str, str, str]:
    if value is None or pd.isna(value):
        return "", "", "number"
    return (str(value) if isinstance(value, int) else f"{value:.4f}"), repr(float(value)), "number"


def _check_objectives(sweeps: Sequence[Sweep]) -> None:
    first = sweeps[0]
    for other in sweeps[1:]:
        ours, theirs = ((sweep.objective.metric, sweep.objective.mode) for sweep in (first, other))
        if ours != theirs:
            raise ConfigError(
                f"{first.name} optimises {ours[1]} {ours[0]}, {other.name} {theirs[1]} {theirs[0]}",
                "sweep report",
                "compare sweeps with the same objective",
            )
