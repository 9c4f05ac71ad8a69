"""``sweep confirm`` and ``export``: confirm the best configuration on fresh seeds, and export
it.
"""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

from dashboards.fresh_seeds import ARM_SEEDS, FINALISTS, FRESH_SEEDS, MAX_SEEDS_IN_ROUNDS
from loptune.errors import ConfigError, MissingError, StorageError
from loptune.terminal.arguments import Commands, add_accept_changes, count, positive
from sweep.commands.arguments import add_machine, add_named, prepare, run_options
from sweep.record.baseline import is_baseline
from sweep.record.best import BestConfiguration, BestWithCaveats, choose_best, scored_configuration
from sweep.record.folder import read_spec
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.space.arms import arms
from sweep.winner.confirm import again_of, choose, finalists_of, fresh_space
from sweep.winner.ending import report_confirmation
from trainer.tracking.inputs import inherit_inputs


def add_commands(commands: Commands) -> None:
    """Add ``sweep confirm`` and ``export``."""
    confirm = add_named(
        commands, "confirm", _confirm, "run finalists on fresh seeds and the held-out test set"
    )
    confirm.add_argument(
        "--rounds",
        action="store_true",
        help="add fresh seeds in rounds until the comparison is decided",
    )
    confirm.add_argument(
        "--again",
        action="store_true",
        help="after an undecided confirmation: run its configurations on new seeds, which are "
        "judged on their own",
    )
    confirm.add_argument(
        "--configurations",
        type=int,
        nargs="+",
        default=[],
        metavar="N",
        help="with --again: numbers of the finalists to run besides the baseline (default: all)",
    )
    add_machine(confirm)
    add_accept_changes(confirm)
    confirm.add_argument(
        "--finalists",
        type=count,
        help="number of finalists besides the baseline (default: the best of every arm, or "
        f"{FINALISTS})",
    )
    confirm.add_argument(
        "--seeds",
        type=count,
        help=f"fresh seeds per finalist (default: {FRESH_SEEDS}; with arms {ARM_SEEDS}; with "
        f"--rounds at most {MAX_SEEDS_IN_ROUNDS})",
    )
    confirm.add_argument(
        "--test",
        help="file of held-out problems, columns mapped like those of the set it replaces "
        "(default: evaluation.sets.test, or the split `test`; none with --rounds)",
    )
    confirm.add_argument(
        "--hours",
        type=positive,
        help="budget of all rounds in GPU hours (CPU hours if trials have no GPU); implies "
        "--rounds",
    )

    export = add_named(
        commands, "export", _export, "write the best configuration as a file for `trainer run`"
    )
    export.add_argument("--output", type=Path, help="file to write (default: NAME-best.yaml)")
    winner = export.add_mutually_exclusive_group()
    winner.add_argument(
        "--configuration",
        type=int,
        help="configuration number (default: the best of `sweep status`)",
    )
    winner.add_argument(
        "--baseline",
        action="store_true",
        help="export the baseline; if rules were tuned, the best setting of the first rule",
    )


def _confirm(arguments: argparse.Namespace) -> int:
    sweep = open_sweep(arguments.runs_dir, arguments.name)
    in_rounds = arguments.rounds or arguments.hours
    _check_again(arguments)
    if in_rounds:
        return _run_rounds(sweep, arguments)
    folder = sweep.folder.confirmation
    if arguments.again:
        chosen = again_of(sweep, arguments.configurations)
        folder = sweep.folder.numbered_confirmation(len(sweep.folder.confirmations) + 1)
    else:
        _refuse_second(sweep)
        chosen = finalists_of(sweep, finalist_count(sweep, arguments.finalists))
    missing = sweep.planned - sum(trial.ended for trial in sweep.trials())
    if missing:
        print(
            f"{missing} trials of the search have not ended; finalists are chosen from the others"
        )
    seeds = ARM_SEEDS if sweep.spec.search.tune_within else FRESH_SEEDS
    space = fresh_space(sweep, chosen, arguments.seeds or seeds, arguments.test, folder=folder)
    prepare(space, arguments)
    from sweep.driver.run import start_sweep

    fresh = SweepRecord(space, folder)
    inherit_inputs(fresh.folder.root, sweep.folder.root)
    code = start_sweep(fresh, replace(run_options(arguments), report=False))
    if code in (0, 1):
        report_confirmation(sweep, fresh.folder.log, ended=True)
    return code


def _check_again(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go with ``--again``, or that need it."""
    excluded = {
        "--rounds": arguments.rounds,
        "--hours": arguments.hours,
        "--finalists": arguments.finalists,
    }
    for option, given in excluded.items():
        if arguments.again and given:
            raise ConfigError(
                f"--again runs the same finalists on a fixed number of seeds, so {option} has no "
                "meaning",
                f"command line, {option}",
                f"leave out {option}; --configurations chooses among the finalists",
                code="again-with-other-options",
            )
    if arguments.configurations and not arguments.again:
        raise ConfigError(
            "--configurations chooses among the finalists of an earlier confirmation",
            "command line, --configurations",
            "add --again, or choose the number of finalists with --finalists",
            code="configurations-without-again",
        )


def _refuse_second(sweep: SweepRecord) -> None:
    """Refuse a confirmation if there is one, and print the command that continues from it."""
    from sweep.record.recorded_rounds import recorded_rounds  # scipy takes a second to import

    folder = sweep.folder.confirmation
    if not folder.event_log.exists():
        return
    last = SweepRecord(read_spec(folder), folder)
    if recorded_rounds(last) is not None:
        hint = f"{sweep.command('confirm', '--rounds')} continues its rounds"
    elif all(trial.ended for trial in last.trials()):
        hint = f"{sweep.command('confirm', '--again')} runs the same finalists on new seeds"
    else:
        hint = f"{last.command('resume')} continues it"
    raise ConfigError(
        f"sweep {folder.name} exists already", str(folder.root), hint, code="sweep-exists"
    )


def finalist_count(sweep: SweepRecord, asked: int | None) -> int:
    """Return the number of finalists besides the baseline; refuse more than there are complete
    configurations.
    """
    spec = sweep.spec
    if asked is None:
        return FINALISTS if spec.search.tune_within is None else len(arms(spec)) - 1
    chosen = finalists_of(sweep, asked)  # the baseline comes first if it is complete
    others = len(chosen) - is_baseline(spec, chosen[0])
    if asked > others:
        raise ConfigError(
            f"--finalists {asked}, but only {others} configurations besides the baseline are "
            "complete",
            "command line, --finalists",
            f"see `{sweep.command('status')}`",
            key="finalists",
            code="too-many-finalists",
        )
    return asked


def _run_rounds(sweep: SweepRecord, arguments: argparse.Namespace) -> int:
    prepare(sweep.spec, arguments)
    from sweep.driver.run import resume_sweep
    from sweep.winner.rounds import RoundsOptions, decide

    run = replace(run_options(arguments), report=False)
    inherit_inputs(sweep.folder.confirmation.root, sweep.folder.root)
    options = RoundsOptions(
        finalists=finalist_count(sweep, arguments.finalists),
        max_seeds=arguments.seeds or MAX_SEEDS_IN_ROUNDS,
        hours=arguments.hours,
        test=arguments.test,
        resume_command=sweep.command("confirm", "--rounds", *run.machine),
    )
    code, rounds = decide(
        sweep, options, lambda fresh: resume_sweep(fresh, run), partial(print, flush=True)
    )
    if rounds.analyses:
        report_confirmation(sweep, sweep.folder.confirmation.log, ended=rounds.outcome != "open")
    return code


def _export(arguments: argparse.Namespace) -> int:
    from sweep.record.results import read_results  # which takes a second to import

    sweep = open_sweep(arguments.runs_dir, arguments.name)
    spec = sweep.spec
    chosen = choose_best(sweep, read_results(sweep))
    if arguments.configuration is not None:
        best = _requested(sweep, arguments.configuration)
    elif arguments.baseline:
        best = _requested(sweep, _baseline_number(sweep))
    else:
        best = _chosen_by_evidence(sweep, chosen)
    output: Path = arguments.output or Path(f"{sweep.folder.name}-best.yaml")
    if output.exists():
        raise ConfigError(
            f"{output} exists already",
            str(output),
            "choose another file with --output",
            key="output",
            code="file-exists",
        )
    overrides = {**best.parameters, "seed": spec.seeds[0]}
    try:
        spec.program.save(overrides, output)
    except OSError as error:
        raise StorageError(
            f"cannot write {output}: {error.strerror}",
            str(output),
            "choose --output",
            key="output",
            code="cannot-write",
        ) from None
    print("\n       ".join([best.text(spec.objective), *chosen.caveats]))
    print(spec.program.launch_command(overrides, output, spec.resources.workers_per_trial))
    return 0


def _requested(sweep: SweepRecord, number: int) -> BestConfiguration:
    """Return the configuration with this number.

    Raises:
        MissingError: it has no score.
    """
    best = scored_configuration(sweep, str(number))
    if best is None:
        raise MissingError(
            f"{sweep.folder.name}: configuration {number} is not complete",
            str(sweep.folder.root),
            sweep.command("status"),
            key="configuration",
            code="configuration-not-complete",
        )
    return best


def _baseline_number(sweep: SweepRecord) -> int:
    """Return the number of the baseline; 0, the first listed one, if it is not complete."""
    first = finalists_of(sweep, 1)[0]
    return first.number if is_baseline(sweep.spec, first) else 0


def _choices(sweep: SweepRecord) -> str:
    """Return a command for each configuration that could be exported: the baseline and the
    finalists.
    """
    folder = sweep.folder.confirmation
    if folder.event_log.exists():
        confirms = read_spec(folder).confirms
        numbers = [] if confirms is None else confirms.configurations
    else:
        chosen = choose(sweep.spec, sweep.configurations, finalist_count(sweep, None))
        numbers = [finalist.number for finalist in chosen]
    lines = []
    for number in numbers:
        best = scored_configuration(sweep, str(number))
        if best is not None:
            command = sweep.command("export", "--configuration", str(number))
            lines.append(f"  #{number} {best.shown}: {command}")
    return "\n".join(["choose one:", *lines])


def _chosen_by_evidence(sweep: SweepRecord, chosen: BestWithCaveats) -> BestConfiguration:
    """Return the configuration that the evidence names.

    Raises:
        MissingError: it names none, or nothing is complete yet.
    """
    if chosen.best is not None:
        return chosen.best
    name = sweep.folder.name
    root = str(sweep.folder.root)
    if chosen.caveats:
        raise MissingError(
            f"{name}: the evidence does not single out a configuration. {chosen.caveats[0]}",
            root,
            _choices(sweep),
            code="no-single-best",
        )
    raise MissingError(
        f"{name}: no configuration is complete yet",
        root,
        sweep.command("status"),
        code="nothing-complete",
    )
