"""Three questions to ask before believing a verdict, answered from the results."""

from dashboards import words
from dashboards.results import Results
from loptune.parameter_names import short_names, shown
from loptune.terminal.table import counted

TITLE = "Three questions before you trust the result"


def questions(results: Results) -> list[tuple[str, str]]:
    """Return each question with its answer; empty before there is anything to compare."""
    if results.comparable.empty or results.compared_with is None:
        return []
    return [
        ("Was the baseline tuned equally well?", _tuning(results)),
        ("On which seeds?", _seeds(results)),
        ("What else differs?", _other_differences(results)),
    ]


def _tuning(results: Results) -> str:
    if results.arms:
        counts = results.table[results.table.arm != ""].groupby("arm").configuration.nunique()
        budgets = ", ".join(f"{arm} {counts[arm]}" for arm in results.arms if arm in counts)
        return f"Each rule was tuned separately. Configurations per rule: {budgets}."
    others = results.table.configuration.nunique() - 1
    if results.nothing_chosen:
        return (
            "All configurations were listed, and none was tuned here. If the others' settings were "
            "tuned elsewhere and the baseline's were not, the comparison favors the others."
        )
    return (
        f"No: the baseline ran at one setting, and the best of {counted(others, 'other')} is "
        "compared with it. With `search.tune_within` each rule gets its own search."
    )


def _seeds(results: Results) -> str:
    if results.fresh is not None and not results.fresh.comparable.empty:
        seeds = counted(results.fresh.comparable.seed.nunique(), "fresh seed")
        return f"On {seeds}, which played no part in choosing the configurations."
    seeds = counted(results.comparable.seed.nunique(), "seed")
    if results.nothing_chosen:
        return f"On {seeds}. No score chose a configuration, so these seeds are evidence."
    return (
        f"On the {seeds} of the search. They selected the best of many scores, so they give "
        "candidates, never evidence. `sweep confirm` runs fresh seeds."
    )


def _best(results: Results) -> str | None:
    """Return the number of the configuration that the headline is about; None without a verdict,
    or if that configuration is not among the results of the search.
    """
    judged = results.fresh_verdict
    if judged is not None:
        return judged.best if judged.best in results.labels else None
    return None if results.verdict is None else results.verdict.best


def _other_differences(results: Results) -> str:
    best = None if results.arms else _best(results)
    changed = {} if best is None else results.changed(best)
    called = short_names(results.varied)
    parts = []
    if results.arms and results.fresh is not None and not results.fresh.comparable.empty:
        compared = dict.fromkeys(trial.configuration for trial in results.fresh.trials)
        settings_of = ", ".join(results.labels[number] for number in compared)
        parts.append(f"Each rule has its own best setting of the search: {settings_of}.")
    if best is not None and changed:
        settings = {
            called[name]: (shown(now), shown(base)) for name, (now, base) in changed.items()
        }
        together = "" if len(settings) == 1 else "; all of them together make the difference"
        name = results.labels[best]
        changes = words.changes(settings)
        parts.append(f"{name} differs from the baseline in {changes}{together}.")
    ends = results.comparable.step
    if ends.nunique() > 1:
        parts.append(f"The trials ended at different steps, {ends.min():g} to {ends.max():g}.")
    failed = sum(trial.state == "FAIL" for trial in results.trials)
    if failed:
        parts.append(f"Failed, counted against every claim: {counted(failed, 'trial')}.")
    return " ".join(parts) or "No other searched setting differs."
