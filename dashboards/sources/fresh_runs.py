"""Add a second table, with runs on fresh seeds, to results."""

from dataclasses import replace

import pandas as pd

from dashboards.results import Results
from dashboards.sources.configurations import text_of
from dashboards.sources.run_columns import RunColumns
from dashboards.sources.runs import read_runs
from dashboards.sources.unseeded_runs import NOTE as UNSEEDED
from loptune.errors import ConfigError


def with_fresh(results: Results, table: pd.DataFrame, columns: RunColumns) -> Results:
    """Add a second table as results on fresh seeds.

    Raises:
        ConfigError: the second table cannot be read as runs, repeats a seed of the first table, has
            a configuration that the first table lacks, has several settings of a tuned arm, or has
            none of the baseline's arm.
    """
    chosen = read_runs(
        table, replace(columns, problems=None, source="second table"), adaptive=False
    )
    repeated = {trial.seed for trial in results.trials} & {trial.seed for trial in chosen.trials}
    if repeated and UNSEEDED not in chosen.warnings:
        named = ", ".join(sorted(repeated))
        raise ConfigError(
            f"seeds {named} are in both tables: they are not fresh",
            columns.seed,
            "use other seeds",
            code="seeds-not-fresh",
        )
    numbers = {tuple(trial.parameters.values()): trial.configuration for trial in results.trials}
    trials = []
    for trial in chosen.trials:
        number = numbers.get(tuple(trial.parameters.values()))
        if number is None:
            raise ConfigError(
                f"the second table has {text_of(trial.parameters)}, which is missing from the "
                "first table",
                "second table",
                "add the runs that led to its selection to the first table",
                code="unknown-configuration",
            )
        trials.append(replace(trial, configuration=number))
    baseline = results.baseline
    if results.arms:
        settings: dict[str, set[str]] = {}
        for trial in trials:
            settings.setdefault(trial.arm, set()).add(trial.configuration)
        twice = [arm for arm, numbers_of_arm in settings.items() if len(numbers_of_arm) > 1]
        if twice or results.arms[0] not in settings:
            what = f"{twice[0]} has several settings" if twice else f"{results.arms[0]} is missing"
            raise ConfigError(
                f"{what} on fresh seeds",
                "second table",
                "run only the best setting of each arm",
                code="not-one-setting",
            )
        baseline = next(iter(settings[results.arms[0]]))
    fresh = replace(chosen, trials=tuple(trials), baseline=baseline, arms=())
    return replace(results, fresh=fresh)
