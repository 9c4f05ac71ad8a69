"""The ``sweep`` command."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.record.folder import (
    SweepFolder,
    all_sweeps,
    command,
    existing_sweep,
    holder,
    read_spec,
    request_stop,
    sweep_folder,
)
from sweep.record.table import number, print_json, print_table, print_trials, rows_as_json
from sweep.space.advice import advise_space
from sweep.space.file import find_space, load_space
from sweep.space.shrink import load_shrunk
from sweep.space.spec import DecideSpec, SweepSpec
from sweep.trials.address import check_address
from sweep.trials.cluster import Node, check_fit, cluster_nodes, local_node, prepare_environment
from sweep.views import plan as plans
from trainer.commands.arguments import PAGES, count, parse_arguments, port, positive, version_text
from trainer.commands.own_packages import check_folder
from trainer.errors import INTERRUPTED, ConfigError, MissingError, StorageError, UserError
from trainer.files import storage_fault

if TYPE_CHECKING:
    from sweep.runner import Options


def main(argv: Sequence[str] | None = None, options: "Options | None" = None) -> int:
    """Entry point; returns the exit code.

    Args:
        argv: arguments; those of the process if None.
        options: how sweeps run, apart from what the arguments say; as usual if None.
    """
    try:
        arguments = parse_arguments(_parser(), argv, override_prefix="trainer.")
        arguments.options = options
        code: int = arguments.command(arguments)
        return code
    except UserError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has gone, as in `sweep status X | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        fault = storage_fault(error)
        if fault is None:
            raise
        print(fault, file=sys.stderr, flush=True)
        return fault.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sweep", description="Find out which update rule works on a task.", epilog=PAGES
    )
    parser.set_defaults(json=False)
    parser.add_argument("--version", action="version", version=version_text())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--runs-dir", type=Path, default=Path("runs"), help="folder of all runs (default: runs)")
    table = argparse.ArgumentParser(add_help=False)
    table.add_argument("--json", action="store_true", help="print JSON")
    machine = argparse.ArgumentParser(add_help=False)
    machine.add_argument(
        "--address", help="Ray cluster that this machine is a node of: auto or HOST:PORT (default: start Ray here)"
    )
    machine.add_argument("--cpus", type=count, help="CPUs of this machine to use (default: all)")
    space = argparse.ArgumentParser(add_help=False)
    space.add_argument("space", help="YAML file, or the name of one in search_spaces/")
    space.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. search.configurations=4")
    space.add_argument("--name", help="name of the sweep (default: the file's)")
    space.add_argument(
        "--shrink",
        action="store_true",
        help="the same search with the embedded policy and two steps, to see on any CPU that it runs",
    )
    space.add_argument(
        "--offline", action="store_true", help="do not contact MLflow; `trainer upload` sends it later"
    )

    plan = commands.add_parser("plan", parents=[space, common, table, machine], help="what a sweep would do")
    plan.add_argument("--step-seconds", type=float, help="seconds of a training step, for the forecast")
    plan.add_argument("--nodes", type=count, help="plan for so many machines like this one")
    plan.add_argument("--gpus", type=count, help="plan for machines with so many GPUs")
    plan.set_defaults(command=_plan)
    run = commands.add_parser("run", parents=[space, common, machine], help="run a new sweep")
    run.set_defaults(command=_run)

    resume = _named(commands, "resume", "go on with a sweep that was stopped or killed", common, machine)
    resume.set_defaults(command=_resume)
    extend = _named(commands, "extend", "add configurations to a sweep and go on", common, machine)
    extend.add_argument("--configurations", type=count, required=True, help="how many more to propose")
    extend.set_defaults(command=_extend)
    _named(commands, "status", "the trials of a sweep", common, table).set_defaults(command=_status)
    _named(commands, "stop", "stop a running sweep at the next training step", common).set_defaults(command=_stop)
    ls = commands.add_parser("ls", parents=[common, table], help="all sweeps")
    ls.set_defaults(command=_ls)
    report = commands.add_parser("report", parents=[common], help="write the report again, or compare sweeps")
    report.add_argument("names", nargs="+", metavar="name", help="a sweep; several are compared on one page")
    report.add_argument("--png", action="store_true", help="PNGs of the pictures too (needs Chromium or Chrome)")
    report.set_defaults(command=_report)
    confirm = _named(commands, "confirm", "finalists on fresh seeds and the sealed test", common, machine)
    confirm.add_argument("--finalists", type=count, default=2, help="besides the plain baseline (default: 2)")
    confirm.add_argument("--seeds", type=count, default=3, help="fresh seeds of each (default: 3)")
    confirm.add_argument("--test", help="file of the sealed problems (default: the split `test`)")
    confirm.set_defaults(command=_confirm)
    decide = _named(commands, "decide", "finalists in rounds of fresh seeds until it is known", common, machine)
    decide.add_argument("--gpu-hours", type=positive, help="what all rounds may cost (default: the space's)")
    decide.add_argument("--cpu-hours", type=positive, help="the same for trials without GPUs")
    decide.add_argument("--finalists", type=count, help="besides the plain baseline (default: the space's, or 2)")
    decide.set_defaults(command=_decide)
    export = _named(commands, "export", "the winner as a file for `trainer run`", common)
    export.add_argument("--output", type=Path, help="file to write (default: NAME-best.yaml)")
    export.set_defaults(command=_export)
    ui = _named(commands, "ui", "open the MLflow UI on this machine", common)
    ui.epilog = "Optuna's view of the search: optuna-dashboard sqlite:///runs/NAME/study.db"
    ui.add_argument("--port", type=port, default=5000, help="port on 127.0.0.1 (default: 5000)")
    ui.set_defaults(command=_ui)
    return parser


def _named(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    verb: str,
    text: str,
    *parents: argparse.ArgumentParser,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(verb, parents=list(parents), help=text)
    parser.add_argument("name", help="name of the sweep, see `sweep ls`")
    return parser


def _load(arguments: argparse.Namespace) -> tuple[SweepSpec, SweepFolder]:
    if arguments.name is not None:
        sweep_folder(arguments.runs_dir, arguments.name)  # refuse a bad name before the file is read
    overrides = [
        *arguments.overrides,
        *([f"name={arguments.name}"] if arguments.name is not None else []),
        *(["trainer.tracking.offline=true"] if arguments.offline else []),
    ]
    if arguments.shrink:
        spec, replaced = load_shrunk(find_space(arguments.space), overrides)
        print(replaced, file=sys.stderr if arguments.json else sys.stdout, flush=True)
    else:
        spec = load_space(find_space(arguments.space), overrides)
    return spec, sweep_folder(arguments.runs_dir, spec.name)


def _plan(arguments: argparse.Namespace) -> int:
    spec, folder = _load(arguments)
    plan = plans.make_plan(spec, folder, _nodes(arguments), arguments.step_seconds)
    _print_advice(spec)
    if arguments.json:
        print_json(plans.as_json(plan))
    else:
        plans.print_plan(plan, spec)
    return 0


def _print_advice(spec: SweepSpec) -> None:
    for advice in advise_space(spec):
        print(advice, file=sys.stderr, flush=True)


def _nodes(arguments: argparse.Namespace) -> list[Node]:
    """The machines to plan for: those of a cluster, or such as are described."""
    if arguments.address is None:
        machine = local_node(arguments.cpus)
        return [replace(machine, gpus=arguments.gpus or machine.gpus)] * (arguments.nodes or 1)
    check_address(arguments.address)
    return cluster_nodes(arguments.address)


def _run(arguments: argparse.Namespace) -> int:
    spec, folder = _load(arguments)
    _prepare(spec, arguments)
    _print_advice(spec)
    from sweep.runner import start_sweep

    return _then_decide(start_sweep(spec, folder, _options(arguments)), spec, folder, arguments)


def _resume(arguments: argparse.Namespace) -> int:
    folder = existing_sweep(arguments.runs_dir, arguments.name)
    spec = read_spec(folder)
    _prepare(spec, arguments)
    from sweep.runner import resume_sweep

    return _then_decide(resume_sweep(spec, folder, _options(arguments)), spec, folder, arguments)


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
    _prepare(spec, arguments)
    from sweep.runner import resume_sweep

    return _then_decide(resume_sweep(spec, folder, _options(arguments)), spec, folder, arguments)


def _options(arguments: argparse.Namespace) -> "Options":
    from sweep.runner import Options

    return replace(arguments.options or Options(), address=arguments.address, cpus=arguments.cpus)


def _prepare(spec: SweepSpec, arguments: argparse.Namespace) -> None:
    """What comes before Ray is imported, which takes seconds and reads the environment."""
    check_address(arguments.address)
    check_folder(Path.cwd())
    prepare_environment(arguments.address)
    if arguments.address is None:
        check_fit(spec.resources, [local_node(arguments.cpus)])


def _status(arguments: argparse.Namespace) -> int:
    from sweep.record.summary import best_configuration, caveats, planned_trials, trial_rows

    folder = existing_sweep(arguments.runs_dir, arguments.name)
    spec, by = read_spec(folder), holder(folder)
    rows = trial_rows(spec, folder, running=by is not None)
    best = best_configuration(spec, folder)
    if arguments.json:
        print_json(
            {
                "name": folder.name,
                "running": by is not None,
                "planned": planned_trials(spec),
                "best": best and vars(best),
                "trials": rows_as_json(rows),
            }
        )
        return 0
    print_trials(rows)
    ended = sum(row.ended for row in rows)
    state = f"run by {by}" if by else "not running"
    print(f"\n{folder.name}: {ended} of {planned_trials(spec)} trials ended, {state}")
    if best is not None:
        print(best.text(spec.objective))
        for line in caveats(spec, folder):
            print(f"       {line}")
    if by is None and ended < planned_trials(spec):
        print(f"to go on: {command('resume', folder)}")
    return 0


def _stop(arguments: argparse.Namespace) -> int:
    folder = existing_sweep(arguments.runs_dir, arguments.name)
    by = holder(folder)
    if by is None:
        print(f"sweep {folder.name} is not running")
        return 0
    # A file, not a signal: it reaches a driver and ranks on other machines too.
    request_stop(folder)
    print(f"asked {by} to stop after the current training step")
    return 0


@dataclass(frozen=True)
class _Listed:
    name: str
    state: str  # running, done, stopped, or what is wrong with it
    ended: int = 0
    planned: int = 0
    best: float | None = None


def _ls(arguments: argparse.Namespace) -> int:
    from sweep.record.summary import best_configuration, planned_trials, trial_rows

    found = []
    for folder in all_sweeps(arguments.runs_dir):
        try:
            spec = read_spec(folder)
            rows = trial_rows(spec, folder)
            best = best_configuration(spec, folder)
        except UserError as error:
            found.append(_Listed(folder.name, error.what))
            continue
        ended = sum(row.ended for row in rows)
        planned = planned_trials(spec)
        state = "running" if holder(folder) else "done" if ended >= planned else "stopped"
        found.append(_Listed(folder.name, state, ended, planned, best.score if best else None))
    if arguments.json:
        print_json([asdict(listed) for listed in found])
    elif found:
        print_table(
            ["name", "state", "trials", "best"],
            [[row.name, row.state, f"{row.ended}/{row.planned}", number(row.best)] for row in found],
        )
    else:
        print(f"no sweeps in {arguments.runs_dir}")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    folders = [existing_sweep(arguments.runs_dir, name) for name in dict.fromkeys(arguments.names)]
    uris = [_tracking_uri(read_spec(folder), folder) for folder in folders]
    if len(set(uris)) > 1:
        raise ConfigError(
            "the sweeps are in different MLflow stores", ", ".join(uris), "compare those of one store"
        )
    if len(folders) == 1:
        from dashboards.pages.report import write_report

        print(write_report(folders[0].name, uris[0], folders[0].report, png=arguments.png))
        return 0
    from dashboards.pages.comparison import write_comparison

    names = [folder.name for folder in folders]
    out_dir = folders[0].runs_dir / "comparisons" / "-".join(names)
    print(write_comparison(names, uris[0], out_dir, png=arguments.png))
    return 0


def _confirm(arguments: argparse.Namespace) -> int:
    from sweep.winner.confirm import confirmation_space

    folder = existing_sweep(arguments.runs_dir, arguments.name)
    spec = read_spec(folder)
    confirming = confirmation_space(spec, folder, arguments.finalists, arguments.seeds, arguments.test)
    _prepare(confirming, arguments)
    from dashboards.pages.report import write_report
    from sweep.runner import start_sweep

    code = start_sweep(confirming, sweep_folder(arguments.runs_dir, confirming.name), _options(arguments))
    if not spec.base.tracking.offline:
        print(f"report: {write_report(folder.name, _tracking_uri(spec, folder), folder.report)}")
    return code


def _decide(arguments: argparse.Namespace) -> int:
    folder = existing_sweep(arguments.runs_dir, arguments.name)
    spec = read_spec(folder)
    given = {key: getattr(arguments, key) for key in ("gpu_hours", "cpu_hours", "finalists")}
    settings = (spec.decide or DecideSpec()).model_copy(update={k: v for k, v in given.items() if v is not None})
    has, lacks = ("gpu", "cpu") if spec.resources.gpus_per_trial else ("cpu", "gpu")
    if getattr(settings, f"{lacks}_hours") is not None:
        raise ConfigError(
            f"a budget in {lacks.upper()} hours, and the trials are counted in {has.upper()} hours",
            f"{folder.space}, key resources.gpus_per_trial",
            f"write --{has}-hours N",
        )
    _prepare(spec, arguments)
    return _run_decision(spec, folder, settings, arguments)


def _then_decide(code: int, spec: SweepSpec, folder: SweepFolder, arguments: argparse.Namespace) -> int:
    """What follows a search that is done, where the space asks for it."""
    from sweep.record.summary import planned_trials, trial_rows

    ended = sum(row.ended for row in trial_rows(spec, folder))
    if spec.decide is None or code not in (0, 1) or ended < planned_trials(spec):
        return code
    return max(code, _run_decision(spec, folder, spec.decide, arguments))


def _run_decision(
    spec: SweepSpec, folder: SweepFolder, settings: DecideSpec, arguments: argparse.Namespace
) -> int:
    from sweep.runner import resume_sweep
    from sweep.winner.decide import decide, log_decision

    options = replace(_options(arguments), report=False)
    code, decision = decide(
        spec,
        folder,
        settings,
        lambda space, deciding: resume_sweep(space, deciding, options),
        lambda line: print(line, flush=True),
    )
    if not spec.base.tracking.offline and decision.looks:
        from dashboards.pages.report import write_report

        uri = _tracking_uri(spec, folder)
        log_decision(folder, decision, uri)
        print(f"report: {write_report(folder.name, uri, folder.report)}")
    return code


def _export(arguments: argparse.Namespace) -> int:
    from sweep.record.summary import best_configuration
    from sweep.space.points import trial_config
    from sweep.winner.accelerate_file import write_accelerate_config
    from trainer.config.schema import save_config

    folder = existing_sweep(arguments.runs_dir, arguments.name)
    spec = read_spec(folder)
    best = best_configuration(spec, folder)
    if best is None:
        raise MissingError(
            f"no configuration of {folder.name} is complete yet", str(folder.root), command("status", folder)
        )
    output: Path = arguments.output or Path(f"{folder.name}-best.yaml")
    if output.exists():
        raise ConfigError(f"{output} exists", str(output), "choose another file with --output")
    config, workers = trial_config(spec.base, best.parameters, spec.seeds[0]), spec.resources.workers_per_trial
    try:
        save_config(config, output)
        accelerate = write_accelerate_config(config, workers, output)
    except OSError as error:
        raise StorageError(f"cannot write {output}: {error.strerror}", str(output), "choose --output") from None
    print(best.text(spec.objective))
    if workers > 1:
        print(f"accelerate launch --config_file {accelerate} -m trainer run {output}")
    else:
        print(f"trainer run {output}")
    return 0


def _ui(arguments: argparse.Namespace) -> int:
    from sweep.views.ui import runs_page, serve

    folder = existing_sweep(arguments.runs_dir, arguments.name)
    spec = read_spec(folder)
    uri = _tracking_uri(spec, folder)
    page = runs_page(uri, spec.base.tracking.experiment or spec.name, folder.name)
    if uri.startswith("http"):
        print(f"MLflow: {uri}{page}  (experiment {folder.name})")
        return 0
    serve(uri, arguments.port, page, folder.name, command("ui", folder))


def _tracking_uri(spec: SweepSpec, folder: SweepFolder) -> str:
    from trainer.tracking.mlflow_store import sqlite_path, tracking_uri

    if spec.base.tracking.offline:
        raise MissingError(
            f"sweep {folder.name} ran offline", str(folder.root), "send its runs with `trainer upload` first"
        )
    uri = tracking_uri(spec.base.tracking, folder.runs_dir)
    database = sqlite_path(uri)
    if database is not None and not database.exists():
        raise StorageError("the MLflow store is gone", str(database), "restore it from a backup")
    return uri
