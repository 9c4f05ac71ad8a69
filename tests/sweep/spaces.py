"""A small search space for tests, written to a file with changes."""

import copy
from pathlib import Path
from typing import Any

import yaml

from sweep.space.file import load_space
from sweep.space.spec import SweepSpec
from tests.sweep.harness import write_space

SPACE: dict[str, Any] = {
    "name": "kk",
    "trainer": {"preset": "base.yaml"},
    "objective": {"metric": "eval/accuracy", "mode": "max", "window": 2},
    "parameters": {
        "algorithm.advantage": {"choice": ["grpo", "reinforce_plus_plus"]},
        "algorithm.ar_alpha": {"uniform": [0.0, 0.5]},
        "lopti": {"choice": [False, True]},
        "algorithm.lopti_eta": {"uniform": [0.2, 0.9], "when": {"lopti": True}, "else": 0.0},
    },
    "baselines": [
        {"algorithm.advantage": "grpo", "algorithm.ar_alpha": 0.0, "lopti": False},
        {
            "algorithm.advantage": "grpo",
            "algorithm.ar_alpha": 0.3,
            "lopti": True,
            "algorithm.lopti_eta": 0.5,
        },
    ],
    "search": {"sampler": "tpe", "configurations": 3, "seed": 0, "startup": 2},
    "seeds": [0, 1],
}

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
