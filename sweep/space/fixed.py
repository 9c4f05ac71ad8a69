"""Spaces without a search: given configurations on given seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loptune.yaml_document import YamlDocument, parse_yaml
from sweep.space.file import dump_space, resolve_space
from sweep.space.spec import SweepSpec


def fixed_space(
    spec: SweepSpec,
    *,
    name: str,
    configurations: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    changes: Mapping[str, Any],
) -> SweepSpec:
    """Return a space that runs some configurations of a space on some seeds, without early
    stopping.

    Args:
        spec: the space.
        name: name of the sweep that runs them.
        configurations: for each configuration, the value of each parameter.
        seeds: seeds of every configuration.
        changes: other keys of the space -> new value.

    Raises:
        ConfigError: the space does not allow a configuration.
    """
    data = parse_yaml(dump_space(spec), name).data | {
        "name": name,
        "baselines": [dict(values) for values in configurations],
        "search": {"sampler": "random", "configurations": 0},
        "scheduler": "none",
        "seeds": list(seeds),
        **changes,
    }
    return resolve_space(YamlDocument(data, {}, name), Path.cwd())
