"""Outcomes of a sweep's trials, and the names, tags and colors of their MLflow runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dashboards.labels import colors
from sweep.record.sweep_record import SweepRecord
from sweep.search.history import TrialKey, TrialState
from sweep.space.arms import arm_of
from sweep.space.spec import SweepSpec
from trainer.metrics.tags import (
    ARM_TAG,
    COLOUR_TAG,
    CONFIGURATION_TAG,
    RUN_TAG,
    SEED_TAG,
    SWEEP_TAG,
    TRIAL_TAG,
    VARIANT_TAG,
)


@dataclass(frozen=True)
class TrialOutcome:
    """The end of a trial, for its MLflow run."""

    key: str  # the tag loptune.run of the trial's run
    run_name: str
    state: TrialState
    reason: str = ""  # why it failed or was stopped
    score: float | None = None  # logged as final/score
    tags: Mapping[str, str] = field(default_factory=dict)
    # for a trial that failed before it opened its run
    params: Mapping[str, Any] = field(default_factory=dict)


def trial_outcomes(sweep: SweepRecord) -> list[TrialOutcome]:
    """Return the outcomes of ended trials for their MLflow runs, in the colors of the report."""
    spec = sweep.spec
    ended = [
        configuration for configuration in tuple(sweep.configurations) if configuration.results
    ]
    variants = {
        configuration.number: spec.program.rule_of(configuration.resolved)[1]
        for configuration in ended
    }
    shades = colors(variants.values())
    outcomes = []
    for configuration in ended:
        variant = variants[configuration.number]
        for seed, result in configuration.results.items():
            key = TrialKey(configuration.number, seed)
            tags = {**trial_tags(spec, key), VARIANT_TAG: variant, COLOUR_TAG: shades[variant]}
            tags |= {ARM_TAG: arm} if (arm := arm_of(spec, configuration.parameters)) else {}
            outcomes.append(
                TrialOutcome(
                    key=tags[RUN_TAG],
                    run_name=trial_name(spec, key, variant),
                    state=result.state,
                    reason=sweep.failure_reason(key, result),
                    score=result.score,
                    tags=tags,
                    params=configuration.resolved,
                )
            )
    return outcomes


def trial_name(spec: SweepSpec, trial: TrialKey, variant: str) -> str:
    """Return the name of a trial's run, short enough for MLflow's list: ``#3 grpo+AR · seed 0``."""
    return (
        f"#{spec.reported(trial.configuration)} {variant.replace(' + ', '+')} · seed {trial.seed}"
    )


def trial_tags(spec: SweepSpec, trial: TrialKey) -> dict[str, str]:
    """Return the MLflow tags that identify a trial."""
    return {
        SWEEP_TAG: spec.name,
        TRIAL_TAG: trial.name,
        CONFIGURATION_TAG: str(spec.reported(trial.configuration)),
        SEED_TAG: str(trial.seed),
        RUN_TAG: f"{spec.name}/{trial.name}",
    }
