"""What a comparison inside a sweep may use, and the verdict on it."""

import math
from collections.abc import Hashable
from typing import Any

import pandas as pd

from dashboards.pictures.theme import rows
from dashboards.queries import Sweep
from dashboards.statistics.problems import Answers
from dashboards.statistics.seed_noise import Noise, seed_noise
from dashboards.statistics.verdict import Verdict, verdict


def configuration_label(row: Any) -> str:
    """A configuration in a few words."""
    parts = [f"#{row.configuration} {row.algorithm}"]
    if row.alpha > 0:
        parts.append(f"α {row.alpha:.2g}")
    if row.eta > 0:
        parts.append(f"η {row.eta:.2g}")
    return " ".join(parts)


def comparable(sweep: Sweep) -> pd.DataFrame:
    """The trials that a comparison may use, with a column label.

    Those that ran to their end, of configurations of which no seed was stopped for a weak start: what is left
    of the others is their luckier seeds.
    """
    pruned = set(sweep.trials[sweep.trials.state == "PRUNED"].configuration)
    complete = sweep.complete()
    kept = complete[~complete.configuration.isin(pruned)]
    return kept.assign(label=[configuration_label(row) for row in rows(kept)])


def plain_baseline(trials: pd.DataFrame) -> str | None:
    """The label of the plain configuration (alpha 0, eta 0) that was started first; chosen without its score."""
    plain = trials[(trials.alpha == 0) & (trials.eta == 0)].sort_values("start", kind="stable")
    return None if plain.empty else str(plain.label.iloc[0])


def seed_scores(sweep: Sweep) -> dict[str, dict[Hashable, float]]:
    """Label -> seed -> score of the comparable configurations; NaN where a seed of theirs failed."""
    judged = comparable(sweep)
    scores: dict[str, dict[Hashable, float]] = {
        str(label): dict(zip(own.seed, own.score, strict=True))
        for label, own in judged.groupby("label", sort=False)
    }
    labels = dict(zip(judged.configuration, judged.label, strict=True))
    for row in rows(sweep.trials[(sweep.trials.state == "FAIL") & sweep.trials.configuration.isin(labels)]):
        scores[str(labels[row.configuration])][row.seed] = math.nan
    return scores


def answers(sweep: Sweep) -> Answers:
    """Label -> seed -> accuracy of every problem, of the comparable trials that recorded it."""
    found: dict[str, dict[Hashable, Any]] = {}
    for row in rows(comparable(sweep)):
        if row.trial in sweep.solved:
            found.setdefault(str(row.label), {})[row.seed] = sweep.solved[row.trial].accuracy
    return found


def judge(sweep: Sweep) -> Verdict | None:
    """The best configuration against the plain baseline; None where that has no score."""
    base = plain_baseline(comparable(sweep))
    if base is None:
        return None
    return verdict(seed_scores(sweep), base, sweep.objective.mode, adaptive=sweep.adaptive, answers=answers(sweep))


def judge_fresh(sweep: Sweep, fresh: Sweep) -> Verdict | None:
    """The same on fresh seeds, with the noise that the sweep itself has shown."""
    base = plain_baseline(comparable(fresh))
    if base is None:
        return None
    return verdict(
        seed_scores(fresh), base, sweep.objective.mode, known=known_noise(sweep), answers=answers(fresh)
    )


def known_noise(sweep: Sweep) -> Noise:
    """The noise between seeds that the unbroken configurations of a sweep show."""
    return seed_noise(
        {name: row for name, row in seed_scores(sweep).items() if not any(map(math.isnan, row.values()))}
    )
