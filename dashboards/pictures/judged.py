"""The trials that a comparison inside a sweep may use, and the verdict on them."""

import math
from collections.abc import Collection, Hashable
from typing import Any

import pandas as pd

from dashboards.pictures.theme import rows
from dashboards.statistics.problems import Answers
from dashboards.statistics.seed_noise import paired_differences
from dashboards.statistics.verdict import Verdict, verdict
from dashboards.sweep import Sweep, column_of


def comparable(sweep: Sweep) -> pd.DataFrame:
    """The trials that a comparison may use.

    Those that ran to their end, of configurations of which no seed was stopped for a weak start: what is left
    of the others is their luckier seeds.
    """
    pruned = set(sweep.trials[sweep.trials.state == "PRUNED"].configuration)
    complete = sweep.complete()
    return complete[~complete.configuration.isin(pruned)]


def baseline(sweep: Sweep) -> str | None:
    """The label of the configuration that all others are held against; chosen without its score.

    The first that the space lists under ``baselines``; where it lists none, the plain one (alpha 0, eta 0) that
    was started first; of arms the best of the first, which its score has chosen. None where that has no score
    that may be compared.
    """
    trials = comparable(sweep)
    if sweep.arms:
        own = trials[trials.arm == sweep.arms[0]]
        own = own[own.configuration == _best_configuration(own, sweep.objective.mode)]
    elif sweep.baseline is not None:
        own = trials[trials.configuration == sweep.baseline]
    else:
        own = trials[(trials.alpha == 0) & (trials.eta == 0)].sort_values("start", kind="stable")
    return None if own.empty else str(own.label.iloc[0])


def _best_configuration(trials: pd.DataFrame, mode: str) -> str | None:
    """The configuration with the best mean of those with the most seeds."""
    table = trials.groupby("configuration", sort=False).score.agg(["mean", "count"])
    whole = table[table["count"] == table["count"].max()]["mean"]
    return None if whole.empty else str(whole.idxmax() if mode == "max" else whole.idxmin())


def changed_from_baseline(sweep: Sweep, label: str) -> dict[str, tuple[Any, Any]]:
    """Parameter -> its value in a configuration and in the baseline, for those that differ."""
    base = baseline(sweep)
    settings = sweep.trials.drop_duplicates("label").set_index("label")
    if base is None or label not in settings.index:
        return {}
    pairs = {name: (settings[column_of(name)][label], settings[column_of(name)][base]) for name in sweep.varied}
    return {
        name: (one, other) for name, (one, other) in pairs.items() if one != other and pd.notna([one, other]).any()
    }


def only_changed(sweep: Sweep, parameters: Collection[str]) -> pd.DataFrame:
    """Configurations that differ from another in ``parameters`` alone, which has the baseline's values of them.

    Returns:
        label, value (of the first of the parameters), variant, gain (mean difference on shared seeds).
    """
    columns, base = ["label", "value", "variant", "gain"], baseline(sweep)
    settings = comparable(sweep).drop_duplicates("label").set_index("label")
    own = [column_of(name) for name in sweep.varied if name in parameters]
    others = [column_of(name) for name in sweep.varied if name not in parameters]
    if base is None or not own:
        return pd.DataFrame(columns=columns)
    scores, plain, found = seed_scores(sweep), settings.loc[base, own], []
    if others:
        settings = settings[settings.duplicated(others, keep=False)]
    alike = settings.groupby(others, dropna=False, sort=False) if others else [((), settings)]
    for _, group in alike:
        references = group.index[(group[own] == plain).all(axis=1)]
        if not len(references):
            continue
        gains = paired_differences({str(label): scores[str(label)] for label in group.index}, str(references[0]))
        found += [
            (label, group[own[0]][label], group.variant[label], gain.mean.value) for label, gain in gains.items()
        ]
    return pd.DataFrame(found, columns=columns)


def seed_scores(sweep: Sweep) -> dict[str, dict[Hashable, float]]:
    """Label -> seed -> score of the comparable configurations; NaN where a seed of theirs failed."""
    judged = comparable(sweep)
    scores: dict[str, dict[Hashable, float]] = {}
    for label, seed, score in zip(judged.label, judged.seed, judged.score, strict=True):
        scores.setdefault(str(label), {})[seed] = score
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
    """The best configuration against the baseline; None where that has no score."""
    base = baseline(sweep)
    if base is None:
        return None
    return verdict(seed_scores(sweep), base, sweep.objective.mode, adaptive=sweep.adaptive, answers=answers(sweep))


def judge_fresh(fresh: Sweep, search: Sweep, only: str | None = None) -> Verdict | None:
    """Return the verdict on fresh seeds of finalists and baseline, under the numbers they have in the search.

    The search shows how much each of them varies. ``only`` is the label of the one finalist to judge; all if None.
    """
    base = baseline(fresh)
    if base is None:
        return None
    labels = dict(zip(fresh.trials.configuration, fresh.trials.label, strict=True))
    numbers = dict(zip(search.trials.label, search.trials.configuration, strict=True))
    earlier = {
        str(labels[numbers[label]]): row for label, row in seed_scores(search).items() if numbers[label] in labels
    }
    scores = {label: row for label, row in seed_scores(fresh).items() if only is None or label in (base, only)}
    earlier = {label: row for label, row in earlier.items() if label in scores}
    return verdict(scores, base, fresh.objective.mode, earlier=earlier, answers=answers(fresh))
