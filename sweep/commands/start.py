"""``sweep plan``, ``run``, ``resume`` and ``extend``: what a sweep would do, and doing it."""

import argparse
import sys
from dataclasses import replace

from sweep.commands.arguments import add_named
from sweep.commands.machines import add_machine, planned_nodes, prepare, run_options
from sweep.commands.winner import then_decide
from sweep.record.folder import SweepFolder, command, existing_sweep, read_spec, sweep_folder
from sweep.record.table import print_json
from sweep.space.advice import advise_space
from sweep.space.file import find_space, load_space
from sweep.space.shrink import load_shrunk
from sweep.space.spec import SweepSpec
from trainer.commands.arguments import Commands, add_json, add_runs_dir, count
from trainer.errors import ConfigError


def add_plan(commands: Commands) -> None:
    """``sweep plan``."""
    plan = commands.add_parser("plan", help="what a sweep would do")
    _add_space(plan)
    add_runs_dir(plan)
    add_json(plan)
    add_machine(plan)
    plan.add_argument("--step-seconds", type=float, help="seconds of a training step, for the forecast")
    plan.add_argument("--nodes", type=count, help="plan for so many machines like this one")
    plan.add_argument("--gpus", type=count, help="plan for machines with so many GPUs")
    plan.set_defaults(command=_plan)


def add_run(commands: Commands) -> None:
    """``sweep run``."""
    run = commands.add_parser("run", help="run a new sweep")
    _add_space(run)
    add_runs_dir(run)
    add_machine(run)
    run.set_defaults(command=_run)


def add_resume(commands: Commands) -> None:
    """``sweep resume``."""
    resume = add_named(commands, "resume", "go on with a sweep that was stopped or killed")
    add_machine(resume)
    resume.add_argument("--retry-failed", action="store_true", help="try trials again that have failed")
    resume.add_argument(
        "--start-over", action="store_true", help="train trials from step 0 whose checkpoints are all damaged"
    )
    resume.set_defaults(command=_resume)


def add_extend(commands: Commands) -> None:
    """``sweep extend``."""
    extend = add_named(commands, "extend", "add configurations to a sweep and go on")
    add_machine(extend)
    extend.add_argument("--configurations", type=count, required=True, help="how many more to propose")
    extend.set_defaults(command=_extend)


def _add_space(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("space", help="YAML file, or the name of one in search_spaces/")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. search.configurations=4")
    parser.add_argument("--name", help="name of the sweep (default: the file's)")
    parser.add_argument(
        "--shrink",
        action="store_true",
        help="the same search with the embedded policy and two steps, to see on any CPU that it runs",
    )
    parser.add_argument(
        "--offline", action="store_true", help="do not contact MLflow; `sweep upload NAME` sends it later"
    )


def _plan(arguments: argparse.Namespace) -> int:
    from sweep.views.plan import as_json, make_plan, print_plan, print_space  # which imports scipy

    spec, folder = _load(arguments)
    if not arguments.json:
        print_space(spec)  # at once: simulating the memory takes seconds
    plan = make_plan(spec, folder, planned_nodes(arguments), arguments.step_seconds)
    _print_advice(spec)
    if arguments.json:
        print_json(as_json(plan))
    else:
        print_plan(plan, spec)
    return 0


def _run(arguments: argparse.Namespace) -> int:
    spec, folder = _load(arguments)
    prepare(spec, arguments)
    _print_advice(spec)
    from sweep.runner import start_sweep

    return then_decide(start_sweep(spec, folder, run_options(arguments)), spec, folder, arguments)


def _resume(arguments: argparse.Namespace) -> int:
    folder = existing_sweep(arguments.runs_dir, arguments.name)
    spec = read_spec(folder)
    prepare(spec, arguments)
    from sweep.runner import resume_sweep

    again = {"retry_failed": arguments.retry_failed, "start_over": arguments.start_over}
    code = resume_sweep(spec, folder, replace(run_options(arguments), **again))
    return then_decide(code, spec, folder, arguments)


def _extend(arguments: argparse.Namespace) -> int:
    folder = existing_sweep(arguments.runs_dir, arguments.name)
    spec = read_spec(folder)
    if spec.search.configurations is None:
        raise ConfigError(
            f"sweep {folder.name} tries every point of its grid: there are no more to add",
            f"{folder.space}, key search.configurations",
            f"{command('resume', folder)} finishes it; for more points run a new sweep with finer ranges",
        )
    more = {"configurations": spec.search.configurations + arguments.configurations}
    spec = spec.model_copy(update={"search": spec.search.model_copy(update=more)})
    prepare(spec, arguments)
    from sweep.runner import resume_sweep

    return then_decide(resume_sweep(spec, folder, run_options(arguments)), spec, folder, arguments)


def _load(arguments: argparse.Namespace) -> tuple[SweepSpec, SweepFolder]:
    if arguments.name is not None:
        sweep_folder(arguments.runs_dir, arguments.name)  # refuse a bad name before the file is read
    overrides = [
        *arguments.overrides,
        *([f'name="{arguments.name}"'] if arguments.name is not None else []),  # `off` is a name, too
        *(["trainer.tracking.offline=true"] if arguments.offline else []),
    ]
    if arguments.shrink:
        spec, replaced = load_shrunk(find_space(arguments.space), overrides)
        print(replaced, file=sys.stderr if arguments.json else sys.stdout, flush=True)
    else:
        spec = load_space(find_space(arguments.space), overrides)
    return spec, sweep_folder(arguments.runs_dir, spec.name)


def _print_advice(spec: SweepSpec) -> None:
    for advice in advise_space(spec):
        print(advice, file=sys.stderr, flush=True)
