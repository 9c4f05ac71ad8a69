"""Arguments shared by the ``sweep`` commands: the sweep and its machines."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from loptune.run_names import check_folder
from loptune.terminal.arguments import Commands, add_runs_dir, count
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


def add_named(
    commands: Commands,
    verb: str,
    command: Callable[[argparse.Namespace], int],
    text: str,
    *,
    optional: bool = False,
) -> argparse.ArgumentParser:
    """Add a command that takes the name of a sweep; without it the newest, if ``optional``."""
    parser = commands.add_parser(verb, help=text)
    parser.set_defaults(command=command)
    add_runs_dir(parser)
    if optional:
        named = "name of the sweep, see `sweep ls` (default: the newest sweep)"
        parser.add_argument("name", nargs="?", help=named)
    else:
        parser.add_argument("name", help="name of the sweep, see `sweep ls`")
    return parser


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Add ``--address`` and ``--cpus``."""
    parser.add_argument(
        "--address",
        help="address of a Ray cluster that this machine belongs to: auto or HOST:PORT "
        "(default: start Ray here)",
    )
    parser.add_argument(
        "--cpus", type=count, help="number of this machine's CPUs to use (default: all)"
    )


def planned_nodes(arguments: argparse.Namespace) -> list[Node]:
    """Return the machines to plan for: the nodes of a cluster, or copies of this machine as the
    arguments describe.
    """
    if arguments.address is None:
        machine = local_node(arguments.cpus)
        return [replace(machine, gpus=arguments.gpus or machine.gpus)] * (arguments.nodes or 1)
    check_address(arguments.address)
    return cluster_nodes(arguments.address)


def prepare(spec: SweepSpec, arguments: argparse.Namespace) -> None:
    """Check and prepare the machine before Ray is imported, which takes seconds and reads the
    environment.

    Raises:
        ConfigError: an invalid address, or a current folder that shadows a loptune package.
        MissingError: a trial needs more resources than this machine has.
    """
    check_address(arguments.address)
    check_folder(Path.cwd())
    prepare_environment(arguments.address)
    if arguments.address is None:
        check_fit(spec.resources, [local_node(arguments.cpus)])


def run_options(arguments: argparse.Namespace) -> "Options":
    """Return the options for running a sweep on these machines."""
    from sweep.driver.run import Options

    accept = getattr(arguments, "accept_changes", False)
    return Options(address=arguments.address, cpus=arguments.cpus, accept_changes=accept)
