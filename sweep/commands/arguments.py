"""Arguments that commands of ``sweep`` share: the sweep, and the machines it is planned for and
runs on.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.space.spec import SweepSpec
from sweep.trials.cluster import (
    Node,
    check_address,
    check_fit,
    cluster_nodes,
    local_node,
    prepare_environment,
)
from trainer.shell.arguments import Commands, add_runs_dir, count
from trainer.shell.run_folder import check_folder

if TYPE_CHECKING:
    from sweep.driver.run import Options


def add_named(
    commands: Commands, verb: str, command: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    """Add a command on one sweep of a runs folder."""
    parser = commands.add_parser(verb, help=text)
    parser.set_defaults(command=command)
    add_runs_dir(parser)
    parser.add_argument("name", help="name of the sweep, see `sweep ls`")
    return parser


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Add ``--address`` and ``--cpus``."""
    parser.add_argument(
        "--address",
        help="Ray cluster that this machine is a node of: auto or HOST:PORT (default: start Ray "
        "here)",
    )
    parser.add_argument("--cpus", type=count, help="CPUs of this machine to use (default: all)")


def planned_nodes(arguments: argparse.Namespace) -> list[Node]:
    """Return the machines to plan for: those of a cluster, or such as are described."""
    if arguments.address is None:
        machine = local_node(arguments.cpus)
        return [replace(machine, gpus=arguments.gpus or machine.gpus)] * (arguments.nodes or 1)
    check_address(arguments.address)
    return cluster_nodes(arguments.address)


def prepare(spec: SweepSpec, arguments: argparse.Namespace) -> None:
    """Check and prepare the machine before Ray is imported, which takes seconds and reads the
    environment.

    Raises:
        ConfigError: an address that cannot be one, or a folder that hides a package of loptune.
        MissingError: a trial needs more than this machine has.
    """
    check_address(arguments.address)
    check_folder(Path.cwd())
    prepare_environment(arguments.address)
    if arguments.address is None:
        check_fit(spec.resources, [local_node(arguments.cpus)])


def run_options(arguments: argparse.Namespace) -> "Options":
    """Return how a sweep runs on them."""
    from sweep.driver.run import Options

    accept = getattr(arguments, "accept_changes", False)
    return Options(address=arguments.address, cpus=arguments.cpus, accept_changes=accept)
