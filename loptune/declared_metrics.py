"""Declarations of all metrics that the trainer logs, loaded from ``declared_metrics.yaml``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

Reduction = Literal["mean", "sum", "max"]

# MLflow artifact with sampled completions
COMPLETIONS_TABLE = "completions.json"


@dataclass(frozen=True)
class Metric:
    """Declaration of one metric."""

    name: str
    formula: str
    unit: str
    reduction: Reduction = "mean"


_TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
_DECLARED = [Metric(name, *declared) for name, declared in _TABLE.items()]
# families of metrics: the last part of each name comes from the data or the configuration
METRIC_FAMILIES = {metric.name: metric for metric in _DECLARED if metric.name.endswith("/")}
METRICS = {metric.name: metric for metric in _DECLARED if metric.name not in METRIC_FAMILIES}


def declaration(name: str) -> Metric:
    """Return the declaration of a metric.

    Raises:
        KeyError: undeclared metric.
    """
    metric = _declared(name)
    if metric is None:
        raise KeyError(f"metric {name} is not declared in loptune/declared_metrics.yaml")
    return metric


def is_declared(name: str) -> bool:
    """Return whether a metric is declared."""
    return _declared(name) is not None


def _declared(name: str) -> Metric | None:
    if name in METRICS:
        return METRICS[name]
    for prefix, metric in METRIC_FAMILIES.items():
        if name.startswith(prefix) and len(name) > len(prefix):
            return metric
    return None


def unit_of(metric: str) -> str:
    """Return a metric's declared unit for an axis title; empty if the metric is dimensionless or
    undeclared.
    """
    declared = _declared(metric)
    return declared.unit if declared is not None and declared.unit != "1" else ""
