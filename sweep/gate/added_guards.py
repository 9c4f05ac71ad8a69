"""Check the guards that a new campaign adds to the guards of its search space."""

from collections.abc import Sequence
from pathlib import Path

from loptune.errors import ConfigError
from loptune.yaml_document import read_yaml
from sweep.space.checks import check_recorded
from sweep.space.spec import SweepSpec


def check_added(metrics: Sequence[str], spec: SweepSpec, file: Path) -> None:
    """Check the metrics of ``--guard``.

    Args:
        metrics: metrics of the added guards.
        spec: search space of the campaign.
        file: file of the space.

    Raises:
        ConfigError: the space has a guard on the metric, or its program does not record it.
    """
    document = read_yaml(file)
    for metric in metrics:
        if metric in spec.objective.guarded:
            place = document.where(("objective", "guards"))
            raise ConfigError(
                f"{metric} is guarded twice: by --guard, and in {place}",
                "--guard",
                "keep one of the two",
                code="named-twice",
            )
        try:
            check_recorded(metric, "guards", spec, document)
        except ConfigError as error:  # the guard is on the command line, not in the file
            raise error.with_place("--guard") from None
