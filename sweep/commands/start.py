"""``sweep plan``, ``run``, ``resume`` and ``extend``: planning and driving a sweep."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from loptune.errors import ConfigError
from loptune.run_names import command_line
from loptune.section import Count, Positive
from loptune.terminal.arguments import Commands
from loptune.terminal.commands import (
    AcceptChanges,
    Command,
    Option,
    RunsDir,
    add_command,
    printing_command,
)
from loptune.terminal.table import print_json
from sweep.commands.arguments import (
    Address,
    Cpus,
    Ended,
    NewName,
    Offline,
    Overrides,
    Space,
    SweepName,
    exit_code_of,
    planned_nodes,
    prepare,
    run_options,
)
from sweep.commands.noise import NOISE_FOLDER
from sweep.record.folder import sweep_folder
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.record.warm_start import warm_started
from sweep.space.advice import advise_space
from sweep.space.file import find_space, load_space
from sweep.space.source import SpaceSource, edited_file, edits_since
from sweep.space.spec import SweepSpec
from sweep.winner.ending import confirmed_sweep, report_resumed

if TYPE_CHECKING:
    from sweep.programs.base import Sample
    from sweep.views.plan import Plan

logger = logging.getLogger(__name__)


def add_commands(commands: Commands) -> None:
    """Add ``sweep plan``, ``schema``, ``run``, ``resume`` and ``extend``."""
    for command in (PLAN, SCHEMA, RUN, RESUME, EXTEND):
        add_command(commands, command)


@dataclass(frozen=True)
class PlannedSweep:
    """A sweep that was planned and not started."""

    sweep: SweepRecord
    plan: "Plan"
    sample: "Sample | None"  # result of sampling the initial model
    words: list[str]  # command-line words that describe the sweep, without its name
    renamed: bool  # the sweep's name differs from the name in its space


def plan(
    space: Space,
    overrides: Overrides = (),
    *,
    name: NewName = None,
    offline: Offline = False,
    runs_dir: RunsDir = Path("runs"),
    sample: Annotated[
        Count | None,
        Option(
            "sample completions of N training problems, and report how many groups would give a "
            "learning signal",
            metavar="N",
        ),
    ] = None,
    step_seconds: Annotated[
        Positive | None,
        Option("seconds per training step, for the time forecast", group="machines"),
    ] = None,
    noise: Annotated[
        Path,
        Option(
            "folder of `sweep noise`; its runs are used like those of earlier sweeps", is_path=True
        ),
    ] = NOISE_FOLDER,
    nodes: Annotated[
        Count | None, Option("number of machines like this one to plan for", group="machines")
    ] = None,
    gpus: Annotated[
        Count | None, Option("plan for machines with this many GPUs", group="machines")
    ] = None,
    address: Address = None,
    cpus: Cpus = None,
) -> PlannedSweep:
    """Show a sweep's trials, cost, memory and power without running it. Nothing is written.

    Raises:
        UserError: the space, its data or the machines are invalid.
    """
    from sweep.views.plan import make_plan  # scipy takes a second to import

    sweep = _load(space, overrides, name, offline=offline, runs_dir=runs_dir)
    spec = sweep.spec
    machines = planned_nodes(address, cpus, gpus, nodes)
    made = make_plan(sweep, machines, step_seconds, noise_folder=noise)
    _print_advice(spec)
    sampled = spec.program.sample(spec.values_of_trials(), sample) if sample else None
    words = [space, *overrides]
    if offline:
        words.append("--offline")
    return PlannedSweep(sweep, made, sampled, words, renamed=name is not None)


def _plan_fields(planned: PlannedSweep) -> dict[str, Any]:
    from sweep.views.plan import as_json

    fields = as_json(planned.plan)
    if planned.sample is not None:
        fields["sample"] = planned.sample.json
    return fields


def _show_plan(planned: PlannedSweep) -> None:
    from sweep.views.plan import print_plan, print_sample

    sweep = planned.sweep
    print_plan(planned.plan, sweep, planned.words, renamed=planned.renamed)
    if planned.sample is not None:
        print_sample(planned.sample, sweep.spec, planned.plan.configurations)


def schema() -> dict[str, Any]:
    """Print the JSON Schema of search spaces, for editors. It enables completion and validation
    while you type.
    """
    return SweepSpec.model_json_schema()


def run(
    space: Space,
    overrides: Overrides = (),
    *,
    name: NewName = None,
    offline: Offline = False,
    runs_dir: RunsDir = Path("runs"),
    address: Address = None,
    cpus: Cpus = None,
) -> Ended:
    """Run a new sweep. As many trials train at the same time as fit on the machine, and a report
    compares them at the end. Ctrl-C stops it; `sweep resume` continues.

    Raises:
        UserError: the space is wrong, the sweep exists, or it cannot start or continue.
    """
    sweep = _load(space, overrides, name, offline=offline, runs_dir=runs_dir)
    prepare(sweep.spec, address, cpus)
    _print_advice(sweep.spec)
    from sweep.driver.run import start_sweep

    file = find_space(space).resolve()
    changed = [f'name="{sweep.folder.name}"', *overrides]
    options = replace(run_options(address, cpus), source=SpaceSource(str(file), changed))
    return Ended(sweep, start_sweep(sweep, options))


def _warn_of_edits(sweep: SweepRecord, spec: SweepSpec) -> None:
    """Warn that edits to the space file of an existing sweep have no effect on it."""
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
            "%s was edited, but a sweep keeps the space that it was started with (%s). Ignored "
            "changes:\n%s\nto search the edited space, start a new sweep: %s",
            file,
            sweep.folder.space.name,
            lines,
            command,
        )


def resume(
    name: SweepName,
    *,
    runs_dir: RunsDir = Path("runs"),
    accept_changes: AcceptChanges = False,
    retry_failed: Annotated[bool, Option("retry failed trials")] = False,
    start_over: Annotated[
        bool, Option("restart trials whose checkpoints are damaged or missing from step 0")
    ] = False,
    address: Address = None,
    cpus: Cpus = None,
) -> Ended:
    """Resume a stopped or killed sweep. Each trial continues from its last checkpoint, and the
    search continues as if it had never stopped.

    Raises:
        UserError: there is no such sweep, its files changed, or it cannot continue.
    """
    sweep = open_sweep(runs_dir, name)
    _warn_of_edits(sweep, sweep.spec)
    prepare(sweep.spec, address, cpus)
    from sweep.driver.run import resume_sweep

    options = replace(
        run_options(address, cpus, accept_changes=accept_changes),
        retry_failed=retry_failed,
        start_over=start_over,
    )
    confirmed = confirmed_sweep(sweep)
    if confirmed is None:
        return Ended(sweep, resume_sweep(sweep, options))
    # finish as `sweep confirm` would
    code = resume_sweep(sweep, replace(options, report=False))
    if code in (0, 1):
        report_resumed(sweep, confirmed)
    return Ended(sweep, code)


def extend(
    name: SweepName,
    *,
    runs_dir: RunsDir = Path("runs"),
    configurations: Annotated[Count, Option("number of configurations to add")],
    accept_changes: AcceptChanges = False,
    address: Address = None,
    cpus: Cpus = None,
) -> Ended:
    """Add configurations to a sweep and run them. The search continues from all scores so far.

    Raises:
        UserError: there is no such sweep, it has no configurations to add, or it cannot continue.
    """
    sweep = open_sweep(runs_dir, name)
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
    more = {"configurations": spec.search.configurations + configurations}
    sweep = SweepRecord(
        spec.model_copy(update={"search": spec.search.model_copy(update=more)}), folder
    )
    prepare(sweep.spec, address, cpus)
    from sweep.driver.run import resume_sweep

    options = run_options(address, cpus, accept_changes=accept_changes)
    return Ended(sweep, resume_sweep(sweep, options))


def _load(
    space: str, overrides: Sequence[str], name: str | None, *, offline: bool, runs_dir: Path
) -> SweepRecord:
    """Return the sweep of a space with overrides."""
    overrides = list(overrides)
    if name is not None:
        # reject an invalid name before reading the file
        sweep_folder(runs_dir, name)
        # quoted, because YAML reads a name such as `off` as a boolean
        overrides.append(f'name="{name}"')
    spec = load_space(find_space(space), overrides)
    if offline:
        spec = spec.with_program(spec.program.with_tracking(offline=True))
    spec, messages = warm_started(spec, runs_dir, f"{space}, key search.warm_start")
    for line in messages:
        logger.info("%s", line)
    return SweepRecord(spec, sweep_folder(runs_dir, spec.name))


def _print_advice(spec: SweepSpec) -> None:
    from sweep.views.reach import out_of_reach  # scipy takes a second to import

    for advice in [*out_of_reach(spec), *advise_space(spec)]:
        logger.warning("%s\n", advice)


PLAN = Command(
    function=plan,
    show=_show_plan,
    fields=_plan_fields,
    example="sweep plan quickstart search.configurations=8",
)
SCHEMA = Command(function=schema, show=print_json, fields=None, example="sweep schema")
RUN = printing_command(
    run, "sweep run quickstart trainer.max_steps=40 --name mine", exit_code=exit_code_of
)
RESUME = printing_command(resume, "sweep resume quickstart", exit_code=exit_code_of)
EXTEND = printing_command(
    extend, "sweep extend quickstart --configurations 8", exit_code=exit_code_of
)
