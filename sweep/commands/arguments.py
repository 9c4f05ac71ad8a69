"""Arguments shared by the ``sweep`` commands: the sweep and its machines."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from loptune.run_names import check_folder
from loptune.section import Count
from loptune.terminal.commands import Option
from sweep.record.sweep_record import SweepRecord
from sweep.space.spec import SweepSpec
from sweep.trials.cluster import (
    Node,
    check_address,
    check_fit,
    cluster_nodes,
    local_node,
    prepare_environment,
)

if TYPE_CHECKING:
    from sweep.driver.run import Options

SweepName = Annotated[str, Option("name of the sweep, see `sweep ls`")]
Space = Annotated[str, Option("YAML file, or name of a built-in search space")]
Overrides = Annotated[Sequence[str], Option("e.g. search.configurations=4", metavar="key=value")]
NewName = Annotated[str | None, Option("name of the sweep (default: the space's `name`)")]
Offline = Annotated[
    bool, Option("do not contact MLflow; `sweep upload NAME` sends the records later")
]
Address = Annotated[
    str | None,
    Option(
        "address of a Ray cluster that this machine belongs to: auto or HOST:PORT "
        "(default: start Ray here)",
        group="machines",
    ),
]
Cpus = Annotated[
    Count | None, Option("number of this machine's CPUs to use (default: all)", group="machines")
]


@dataclass(frozen=True)
class Ended:
    """A sweep whose driver has ended."""

    sweep: SweepRecord
    exit_code: int  # exit status of `sweep run`; 0 if no trial failed and nothing stopped the sweep


def exit_code_of(ended: Ended) -> int:
    """Return the exit status of a sweep's driver."""
    return ended.exit_code


def planned_nodes(
    address: str | None, cpus: int | None, gpus: int | None, nodes: int | None
) -> list[Node]:
    """Return the machines to plan for: the nodes of the cluster at ``address``, or ``nodes`` copies
    of this machine with ``cpus`` CPUs and ``gpus`` GPUs; None means as many as it has.

    Raises:
        ConfigError: the address is invalid.
        MissingError: there is no cluster at the address.
    """
    if address is None:
        machine = local_node(cpus)
        return [replace(machine, gpus=gpus or machine.gpus)] * (nodes or 1)
    check_address(address)
    return cluster_nodes(address)


def prepare(spec: SweepSpec, address: str | None, cpus: int | None) -> None:
    """Check and prepare the machine before Ray is imported, which takes seconds and reads the
    environment.

    Raises:
        ConfigError: an invalid address, or a current folder that shadows a loptune package.
        MissingError: there is no cluster at the address, or a trial needs more resources than this
            machine has.
    """
    check_address(address)
    check_folder(Path.cwd())
    prepare_environment(address)
    if address is None:
        check_fit(spec.resources, [local_node(cpus)])


def run_options(
    address: str | None, cpus: int | None, *, accept_changes: bool = False
) -> "Options":
    """Return the options for running a sweep on these machines."""
    from sweep.driver.run import Options

    return Options(address=address, cpus=cpus, accept_changes=accept_changes)
