"""``sweep plan``, ``run``, ``resume`` and ``extend``: planning and driving a sweep."""

import argparse
import logging
from dataclasses import replace
from pathlib import Path

from loptune.errors import ConfigError
from loptune.run_names import command_line
from loptune.terminal.arguments import (
    Commands,
    add_accept_changes,
    add_json,
    add_runs_dir,
    add_sample,
    count,
    positive,
)
from loptune.terminal.table import print_json
from sweep.commands.arguments import add_machine, add_named, planned_nodes, prepare, run_options
from sweep.record.folder import sweep_folder
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.record.warm_start import warm_started
from sweep.space.advice import advise_space
from sweep.space.file import find_space, load_space
from sweep.space.source import SpaceSource, edited_file, edits_since
from sweep.space.spec import SweepSpec
from sweep.winner.ending import confirmed_sweep, report_resumed

logger = logging.getLogger(__name__)


def add_commands(commands: Commands) -> None:
    """Add ``sweep plan``, ``schema``, ``run``, ``resume`` and ``extend``."""
    plan = commands.add_parser(
        "plan", help="show a sweep's trials, cost and memory without running it"
    )
    add_space(plan)
    add_runs_dir(plan)
    add_json(plan)
    add_machine(plan)
    plan.add_argument(
        "--step-seconds", type=positive, help="seconds per training step, for the time forecast"
    )
    plan.add_argument("--nodes", type=count, help="number of machines like this one to plan for")
    plan.add_argument("--gpus", type=count, help="plan for machines with this many GPUs")
    add_sample(plan, "sample")
    plan.set_defaults(command=_plan)

    schema = commands.add_parser(
        "schema", help="print the JSON Schema of search spaces, for editors"
    )
    schema.set_defaults(command=_schema)

    run = commands.add_parser("run", help="run a new sweep")
    add_space(run)
    add_runs_dir(run)
    add_machine(run)
    run.set_defaults(command=_run)

    resume = add_named(commands, "resume", _resume, "resume a stopped or killed sweep")
    add_machine(resume)
    add_accept_changes(resume)
    resume.add_argument("--retry-failed", action="store_true", help="retry failed trials")
    resume.add_argument(
        "--start-over",
        action="store_true",
        help="restart trials whose checkpoints are damaged or missing from step 0",
    )

    extend = add_named(commands, "extend", _extend, "add configurations to a sweep and run them")
    add_machine(extend)
    add_accept_changes(extend)
    extend.add_argument(
        "--configurations", type=count, required=True, help="number of configurations to add"
    )


def add_space(parser: argparse.ArgumentParser) -> None:
    """Add the search space and its overrides."""
    parser.add_argument("space", help="YAML file, or name of a published space")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="e.g. search.configurations=4"
    )
    parser.add_argument("--name", help="name of the sweep (default: the space's `name`)")
    parser.add_argument(
        "--offline",
        action="store_true",
        help="do not contact MLflow; `sweep upload NAME` sends the records later",
    )


def _plan(arguments: argparse.Namespace) -> int:
    # scipy takes a second to import
    from sweep.views.plan import as_json, make_plan, print_plan, print_sample

    sweep = load(arguments)
    spec = sweep.spec
    plan = make_plan(sweep, planned_nodes(arguments), arguments.step_seconds)
    _print_advice(spec)
    if arguments.json:
        sample = arguments.sample and {
            "sample": spec.program.sample(spec.possible, arguments.sample).json
        }
        print_json(as_json(plan) | (sample or {}))
        return 0
    print_plan(plan, sweep, _typed(arguments), renamed=arguments.name is not None)
    if arguments.sample:
        print_sample(
            spec.program.sample(spec.possible, arguments.sample), spec, plan.configurations
        )
    return 0


def _typed(arguments: argparse.Namespace) -> list[str]:
    """Return the words of the command line that describe the sweep, without its name."""
    words = [arguments.space, *arguments.overrides]
    if arguments.offline:
        words.append("--offline")
    if arguments.runs_dir != Path("runs"):
        words += ["--runs-dir", str(arguments.runs_dir)]
    return words


def _schema(arguments: argparse.Namespace) -> int:
    print_json(SweepSpec.model_json_schema())
    return 0


def _run(arguments: argparse.Namespace) -> int:
    sweep = load(arguments)
    prepare(sweep.spec, arguments)
    _print_advice(sweep.spec)
    from sweep.driver.run import start_sweep

    file = find_space(arguments.space).resolve()
    overrides = [f'name="{sweep.folder.name}"', *arguments.overrides]
    options = replace(run_options(arguments), source=SpaceSource(str(file), overrides))
    return start_sweep(sweep, options)


def _warn_of_edits(sweep: SweepRecord, spec: SweepSpec) -> None:
    """Warn of edits in the file of a sweep's space: none of them counts."""
    root = sweep.folder.root
    edits = edits_since(root, spec)
    if edits:
        lines = "\n".join(f"  {line}" for line in edits)
        file = edited_file(root)
        warm = f"search.warm_start=[{sweep.folder.name}]"
        command = command_line(
            "sweep", "run", file, "--name", "NAME", warm, runs_dir=sweep.folder.runs_dir
        )
        logger.warning(
            "%s was edited. The sweep keeps the space that it was started with (%s), so these do "
            "not count:\n%s\nto search the edited space, start a new sweep: %s",
            file,
            sweep.folder.space.name,
            lines,
            command,
        )


def _resume(arguments: argparse.Namespace) -> int:
    sweep = open_sweep(arguments.runs_dir, arguments.name)
    _warn_of_edits(sweep, sweep.spec)
    prepare(sweep.spec, arguments)
    from sweep.driver.run import resume_sweep

    retries = {"retry_failed": arguments.retry_failed, "start_over": arguments.start_over}
    options = replace(run_options(arguments), **retries)
    confirmed = confirmed_sweep(sweep)
    if confirmed is None:
        return resume_sweep(sweep, options)
    # ends as `sweep confirm` would have
    code = resume_sweep(sweep, replace(options, report=False))
    if code in (0, 1):
        report_resumed(sweep, confirmed)
    return code


def _extend(arguments: argparse.Namespace) -> int:
    sweep = open_sweep(arguments.runs_dir, arguments.name)
    spec = sweep.spec
    folder = sweep.folder
    if spec.search.configurations is None or spec.confirms:
        raise ConfigError(
            f"sweep {folder.name} runs a full grid or a confirmation, so there are no "
            "configurations to add",
            f"{folder.space}, key search.configurations",
            f"{sweep.command('resume')} finishes it; for more configurations run a new sweep",
            code="nothing-to-extend",
        )
    _warn_of_edits(sweep, spec)
    more = {"configurations": spec.search.configurations + arguments.configurations}
    sweep = SweepRecord(
        spec.model_copy(update={"search": spec.search.model_copy(update=more)}), folder
    )
    prepare(sweep.spec, arguments)
    from sweep.driver.run import resume_sweep

    return resume_sweep(sweep, run_options(arguments))


def load(arguments: argparse.Namespace) -> SweepRecord:
    """Return the sweep that the arguments describe."""
    overrides = list(arguments.overrides)
    if arguments.name is not None:
        # reject an invalid name before reading the file
        sweep_folder(arguments.runs_dir, arguments.name)
        # quoted, because YAML reads a name such as `off` as a boolean
        overrides.append(f'name="{arguments.name}"')
    spec = load_space(find_space(arguments.space), overrides)
    if arguments.offline:
        spec = spec.with_program(spec.program.with_tracking(offline=True))
    spec, messages = warm_started(
        spec, arguments.runs_dir, f"{arguments.space}, key search.warm_start"
    )
    for line in messages:
        logger.info("%s", line)
    return SweepRecord(spec, sweep_folder(arguments.runs_dir, spec.name))


def _print_advice(spec: SweepSpec) -> None:
    from sweep.views.reach import out_of_reach  # scipy takes a second to import

    for advice in [*out_of_reach(spec), *advise_space(spec)]:
        logger.warning("%s\n", advice)
