"""``sweep confirm`` and ``export``: whether the best is better, and its file."""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

from sweep.commands.arguments import add_machine, add_named, prepare, run_options
from sweep.commands.report import recorded_uri
from sweep.record.sweep_record import SweepRecord, open_sweep, report_failure_told
from sweep.space.arms import ARM_SEEDS, MAX_SEEDS, arms
from sweep.space.points import trial_config
from sweep.space.spec import SweepSpec
from sweep.winner.confirm import confirmation_folder, finalists_of, fresh_space
from trainer.config.schema import save_config
from trainer.errors import ConfigError, MissingError, StorageError
from trainer.shell.arguments import Commands, add_accept_changes, count, positive
from trainer.tracking.inputs import inherit_inputs

# What `sweep confirm` runs where nothing else is asked for.
_FINALISTS = 2  # besides the baseline
_FRESH_SEEDS = 3


def add_confirm(commands: Commands) -> None:
    """``sweep confirm``."""
    confirm = add_named(commands, "confirm", _confirm, "run finalists on fresh seeds and the sealed test set")
    confirm.add_argument("--rounds", action="store_true", help="run rounds of fresh seeds until one is decided")
    add_machine(confirm)
    add_accept_changes(confirm)
    confirm.add_argument(
        "--finalists", type=count, help=f"finalists besides the baseline (default: every arm, or {_FINALISTS})"
    )
    confirm.add_argument(
        "--seeds",
        type=count,
        help=f"fresh seeds each (default: {_FRESH_SEEDS}, of arms {ARM_SEEDS}; in rounds at most {MAX_SEEDS})",
    )
    confirm.add_argument(
        "--test", help="file with the sealed test problems (default: the split `test`; none in rounds)"
    )
    confirm.add_argument(
        "--hours", type=positive, help="budget of all rounds [GPU hours; CPU hours of trials without GPUs]"
    )


def add_export(commands: Commands) -> None:
    """``sweep export``."""
    export = add_named(commands, "export", _export, "write the winner as a file for `trainer run`")
    export.add_argument("--output", type=Path, help="file to write (default: NAME-best.yaml)")
    export.add_argument("--configuration", type=int, help="its number (default: the best of `sweep status`)")


def _confirm(arguments: argparse.Namespace) -> int:
    sweep = open_sweep(arguments.runs_dir, arguments.name)
    if arguments.rounds:
        return _run_rounds(sweep, arguments)
    if arguments.hours:
        raise ConfigError("a budget is counted over rounds", "command line, --hours", "add --rounds")
    chosen = finalists_of(sweep, arguments.finalists or _finalists(sweep.spec))
    seeds = ARM_SEEDS if sweep.spec.search.tune_within else _FRESH_SEEDS
    space = fresh_space(sweep, chosen, arguments.seeds or seeds, arguments.test)
    prepare(space, arguments)
    from sweep.driver.run import start_sweep

    fresh = SweepRecord(space, confirmation_folder(sweep))
    inherit_inputs(fresh.folder.root, sweep.folder.root)
    code = start_sweep(fresh, replace(run_options(arguments), report=False))
    if code in (0, 1):
        _report_on(sweep, fresh.folder.log, ended=True)
    return code


def _finalists(spec: SweepSpec) -> int:
    """How many run besides the baseline where nothing says so."""
    return _FINALISTS if spec.search.tune_within is None else len(arms(spec)) - 1


def _run_rounds(sweep: SweepRecord, arguments: argparse.Namespace) -> int:
    prepare(sweep.spec, arguments)
    from sweep.driver.run import resume_sweep
    from sweep.winner.rounds import Asked, decide, log_decision

    options = replace(run_options(arguments), report=False)
    inherit_inputs(confirmation_folder(sweep).root, sweep.folder.root)
    again = sweep.command("confirm", "--rounds", *options.machine)
    finalists = arguments.finalists or _finalists(sweep.spec)
    asked = Asked(finalists, arguments.seeds or MAX_SEEDS, arguments.hours, arguments.test, again)
    code, decision = decide(sweep, asked, lambda fresh: resume_sweep(fresh, options), partial(print, flush=True))
    if decision.looks:
        log_decision(sweep, decision)
        _report_on(sweep, confirmation_folder(sweep).log)
    return code


def _report_on(sweep: SweepRecord, log: Path, ended: bool = False) -> None:
    """Write the sweep's report; before it print the finding of a confirmation where there is a new one."""
    if sweep.spec.base.tracking.offline:
        return
    with report_failure_told(sweep, log):
        from dashboards.pictures.verdict import confirmed
        from dashboards.queries import read_sweep
        from sweep.tracking.report import write_report

        uri = recorded_uri(sweep)
        recorded = read_sweep(sweep.folder.name, uri)
        for line in confirmed(recorded) if ended else []:
            print(line)
        print(f"report: {write_report(sweep, uri, recorded=recorded)}")


def _export(arguments: argparse.Namespace) -> int:
    sweep = open_sweep(arguments.runs_dir, arguments.name)
    spec, folder, best, number = sweep.spec, sweep.folder, sweep.best(), arguments.configuration
    if number is not None:
        best = sweep.described(next((one for one in sweep.configurations if one.number == number), None))
    if best is None:
        which = "no configuration is complete yet" if number is None else f"configuration {number} is not complete"
        raise MissingError(f"{folder.name}: {which}", str(folder.root), sweep.command("status"))
    output: Path = arguments.output or Path(f"{folder.name}-best.yaml")
    if output.exists():
        raise ConfigError(f"{output} exists", str(output), "choose another file with --output")
    config, workers = trial_config(spec.base, best.parameters, spec.seeds[0]), spec.resources.workers_per_trial
    try:
        save_config(config, output)
    except OSError as error:
        raise StorageError(f"cannot write {output}: {error.strerror}", str(output), "choose --output") from None
    print(sweep.told_best(best))
    launch = f"torchrun --nproc-per-node {workers} -m " if workers > 1 else ""
    print(f"{launch}trainer run {output}")
    return 0
