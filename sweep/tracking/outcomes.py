"""Ended trials of a sweep, and the names, tags and colors of their MLflow runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dashboards.labels import colors
from dashboards.trial import TrialRecord
from loptune.identity import identity
from loptune.mlflow_runs import (
    ARM_TAG,
    COLOR_TAG,
    CONFIGURATION_TAG,
    RUN_TAG,
    SEED_TAG,
    SWEEP_TAG,
    TRIAL_TAG,
    VARIANT_TAG,
    trial_key,
)
from sweep.record.sweep_record import SweepRecord
from sweep.search.history import TrialKey
from sweep.space.arms import arm_of
from sweep.space.spec import SweepSpec


@dataclass(frozen=True)
class EndedTrial:
    """A trial that has ended, and how to find or create its MLflow run."""

    trial: TrialRecord
    run_name: str
    tags: Mapping[str, str]

    @property
    def key(self) -> str:
        """The value of the tag ``loptune.run`` of the trial's run."""
        return self.tags[RUN_TAG]


def ended_trials(sweep: SweepRecord) -> list[EndedTrial]:
    """Return the ended trials with the names, tags and colors of their MLflow runs. The report uses
    the same colors.
    """
    spec = sweep.spec
    variants: dict[int, str] = {}
    configurations = tuple(sweep.configurations)  # the driver's thread may append to them
    for configuration in configurations:
        if configuration.results:
            variants[configuration.number] = spec.program.rule_of(configuration.resolved)[1]
    shades = colors(variants.values())
    own = identity(sweep.folder.root)
    runs = []
    for number, variant in variants.items():
        configuration = configurations[number]
        arm = arm_of(spec, configuration.parameters)
        for seed, trial in configuration.results.items():
            key = TrialKey(number, seed)
            tags = {**trial_tags(spec, key, own), VARIANT_TAG: variant, COLOR_TAG: shades[variant]}
            if arm:
                tags[ARM_TAG] = arm
            with_reason = replace(trial, reason=sweep.failure_reason(trial))
            runs.append(EndedTrial(with_reason, trial_name(spec, key, variant), tags))
    return runs


def trial_name(spec: SweepSpec, trial: TrialKey, variant: str) -> str:
    """Return the name of a trial's run, short enough for MLflow's list: ``#3 grpo+AR · seed 0``."""
    return (
        f"#{spec.reported(trial.configuration)} {variant.replace(' + ', '+')} · seed {trial.seed}"
    )


def trial_tags(spec: SweepSpec, trial: TrialKey, sweep_id: str) -> dict[str, str]:
    """Return the MLflow tags that identify a trial. ``sweep_id`` is the id of its sweep, see
    `loptune.identity`.
    """
    return {
        SWEEP_TAG: spec.name,
        TRIAL_TAG: trial.name,
        CONFIGURATION_TAG: str(spec.reported(trial.configuration)),
        SEED_TAG: str(trial.seed),
        RUN_TAG: trial_key(spec.name, trial.name, sweep_id),
    }
