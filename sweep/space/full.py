"""The second of two stages: finalists that were found with adapters are trained again with full weights."""

from collections.abc import Mapping
from typing import Any

from sweep.space.points import Parameters
from sweep.space.spec import SweepSpec, TrainerSpec
from trainer.config.schema import apply_overrides

ADAPTER = "model.lora."
RANK = f"{ADAPTER}r"
# What `sweep confirm` runs where nothing else is asked for.
FINALISTS = 2  # besides the baseline
FRESH_SEEDS = 3
ARM_SEEDS = 8  # of the best of every arm: few seeds tell nothing of many arms


def trains_adapters(spec: SweepSpec) -> bool:
    """Whether any trial of a sweep may train an adapter."""
    return spec.base.model.lora.r > 0 or RANK in spec.parameters


def full_space(spec: SweepSpec) -> SweepSpec:
    """The space with full weights, as its section ``full`` says; keys that it fixes are no longer searched.

    Raises:
        ConfigError: the trainer refuses the overrides.
    """
    assert spec.full is not None, "asked for only where the space has the section"
    base = apply_overrides(spec.base, {RANK: 0, **spec.full.overrides})
    return spec.model_copy(
        update={
            "trainer": TrainerSpec(config=base),
            "parameters": {key: one for key, one in spec.parameters.items() if not _fixed(spec, key)},
            "baselines": [full_point(spec, baseline) for baseline in spec.baselines],
            "resources": spec.full.resources or spec.resources,
            "full": None,
        }
    )


def full_point(spec: SweepSpec, point: Mapping[str, Any]) -> Parameters:
    """The part of a point that is still searched in `full_space`."""
    return {key: value for key, value in point.items() if not _fixed(spec, key)}


def _fixed(spec: SweepSpec, key: str) -> bool:
    assert spec.full is not None
    return key.startswith(ADAPTER) or key in spec.full.overrides
