"""Check the guards that a new campaign adds to those of its search space."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loptune.errors import ConfigError
from loptune.yaml_document import KeyPath, YamlDocument, read_yaml
from sweep.space.checks import check_recorded
from sweep.space.spec import SweepSpec

_GUARDS = ("objective", "guards")


@dataclass(frozen=True)
class _WithOption(YamlDocument):
    """A search space whose guards come from the command line."""

    def where(self, path: KeyPath) -> str:
        return "--guard" if path == _GUARDS else super().where(path)


def check_added(metrics: Sequence[str], spec: SweepSpec, file: Path) -> None:
    """Check the metrics of ``--guard``.

    Args:
        metrics: metrics of the added guards.
        spec: search space of the campaign.
        file: file of the space.

    Raises:
        ConfigError: the space has a guard on the metric, or its program does not measure it.
    """
    document = read_yaml(file)
    typed = _WithOption(document.data, document.lines, document.source)
    for metric in metrics:
        if metric in spec.objective.guarded:
            raise ConfigError(
                f"{metric} is guarded twice: by --guard, and in {document.where(_GUARDS)}",
                "--guard",
                "keep one of the two",
                code="named-twice",
            )
        check_recorded(metric, "guards", spec, typed)
