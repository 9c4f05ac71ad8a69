"""Completions in a report: what the baseline and the best configuration answered to the same problems."""

import html

from dashboards.pictures.theme import number
from dashboards.queries import Sweep
from dashboards.samples import Answered

TITLE = "Completions"


def samples_html(sweep: Sweep) -> str:
    """A few problems with the answers of both; empty where none was recorded."""
    if not sweep.samples:
        return ""
    labels = dict(zip(sweep.trials.trial, sweep.trials.label, strict=True))
    trials = " and ".join(f"{labels[trial]} ({trial})" for trial in sweep.samples[0].completions)
    text = (
        f"One completion of {trials} for each problem, at the last evaluation. Problems that only one of them "
        "solved come first; MLflow has more under the trial's artifacts."
    )
    problems = "".join(_problem(one, labels) for one in sweep.samples)
    return f'<section id="completions" class="long"><h2>{TITLE}</h2><p>{html.escape(text)}</p>{problems}</section>'


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
