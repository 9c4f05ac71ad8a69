"""Costs of configurations relative to the baseline."""

from dashboards.results import Results
from loptune.score import mean

UNEQUAL = 1.1  # ratio of two costs above which they are called unequal


def cost_ratios(results: Results) -> dict[str, dict[str, float]]:
    """Return configuration -> cost column -> mean amount that its runs used, divided by the
    baseline's mean amount. Ratios up to `UNEQUAL` in either direction are left out.
    """
    used = _mean_costs(results)
    of_baseline = used.pop(results.compared_with or "", {})
    ratios: dict[str, dict[str, float]] = {}
    for configuration, amounts in used.items():
        for column, amount in amounts.items():
            base = of_baseline.get(column, 0.0)
            if base <= 0:
                continue
            ratio = amount / base
            if ratio > UNEQUAL or ratio < 1 / UNEQUAL:
                ratios.setdefault(configuration, {})[column] = ratio
    return ratios


def _mean_costs(results: Results) -> dict[str, dict[str, float]]:
    """Return configuration -> cost column -> mean amount that its comparable runs used."""
    comparable = set(results.comparable.trial)
    amounts: dict[str, dict[str, list[float]]] = {}
    for trial in results.trials:
        if trial.name in comparable:
            of_configuration = amounts.setdefault(trial.configuration, {})
            for column, amount in trial.costs.items():
                of_configuration.setdefault(column, []).append(amount)
    means = {}
    for configuration, columns in amounts.items():
        means[configuration] = {column: mean(used) for column, used in columns.items()}
    return means
