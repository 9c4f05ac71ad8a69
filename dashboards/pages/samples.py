"""Completions in a report: what the baseline and the best configuration answered to the same problems."""

import html
from collections.abc import Sequence

import pandas as pd

from dashboards.artifacts import Answered, read_samples
from dashboards.pictures.judged import baseline, comparable
from dashboards.pictures.parameters import best_index
from dashboards.pictures.theme import number, rows
from dashboards.queries import opened_store
from dashboards.sweep import Sweep

TITLE = "Completions"


def answers_of_both(sweep: Sweep) -> list[Answered]:
    """Answers of a trial of the baseline and of one of the best configuration on the same seed.

    Raises:
        StorageError: the store cannot be read.
    """
    with opened_store(sweep.uri) as client:
        return read_samples(
            client,
            [
                (row.trial, row.run_id, client.get_run(row.run_id).info.artifact_uri)
                for row in rows(baseline_and_best(sweep))
            ],
        )


def baseline_and_best(sweep: Sweep) -> pd.DataFrame:
    """A trial of what others are held against, and one of the best configuration, of the first seed of both."""
    trials, configurations = comparable(sweep), sweep.configurations()
    if configurations.empty:
        return trials.iloc[:0]
    best = configurations.label[best_index(sweep, configurations["mean"])]
    compared = trials[trials.label.isin([baseline(sweep), best])]
    of_both = compared.groupby("seed").label.transform("nunique") == compared.label.nunique()
    chosen: pd.DataFrame = compared[of_both & (compared.seed == compared.seed[of_both].min())]
    return chosen


def samples_html(sweep: Sweep, samples: Sequence[Answered]) -> str:
    """A few problems with the answers of both; empty where none was recorded."""
    if not samples:
        return ""
    labels = dict(zip(sweep.trials.trial, sweep.trials.label, strict=True))
    trials = " and ".join(f"{labels[trial]} ({trial})" for trial in samples[0].completions)
    text = (
        f"One completion of {trials} for each problem, at the last evaluation. Problems that only one of them "
        "solved come first; MLflow has more under the trial's artifacts."
    )
    problems = "".join(_problem(one, labels) for one in samples)
    return f'<section id="completions" class="long"><h3>{TITLE}</h3><p>{html.escape(text)}</p>{problems}</section>'


def _problem(problem: Answered, labels: dict[str, str]) -> str:
    level = f"Difficulty {problem.difficulty}. " if problem.difficulty else ""
    answers = "".join(
        f'<p class="{"COMPLETE" if right else "FAIL"}">{html.escape(labels[trial])}: '
        f"{'right' if right else 'wrong'}, reward {number(reward)}</p><pre>{html.escape(completion.strip())}</pre>"
        for trial, (completion, reward, right) in problem.completions.items()
    )
    asked = f"<pre>{html.escape(problem.prompt)}</pre>"
    wanted = f"<p>{html.escape(level)}Right is:</p><pre>{html.escape(problem.answer)}</pre>"
    return f"<details open><summary>Problem</summary>{asked}{wanted}{answers}</details>"
