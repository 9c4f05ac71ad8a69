"""A small search space for tests, written to a file with changes."""

import copy
from pathlib import Path
from typing import Any

import yaml

from sweep.space.file import load_space
from sweep.space.spec import SweepSpec
from tests.sweep.harness import write_space
from tests.tables import table

SPACE: dict[str, Any] = table("kk_space")

# 6 evaluations after the first step.
TRAINER = {"max_steps": 60, "evaluation": {"every_steps": 10}, "checkpoint": {"every_steps": 10}}


def kk_space(folder: Path, **changes: Any) -> Path:
    """Write SPACE and its base into a folder, with whole top-level keys replaced; returns the
    space's file.
    """
    folder.joinpath("base.yaml").write_text(yaml.safe_dump(TRAINER))
    return write_space(folder / "space.yaml", SPACE, **changes)


def make_spec(folder: Path, **changes: Any) -> SweepSpec:
    return load_space(kk_space(folder, **changes))


def parameters(**changes: Any) -> dict[str, Any]:
    """The parameters of SPACE with some replaced; a double underscore stands for the dot."""
    replaced = {key.replace("__", "."): value for key, value in changes.items()}
    merged = {**copy.deepcopy(SPACE["parameters"]), **replaced}
    return {key: value for key, value in merged.items() if value is not None}
