"""``sweep confirm`` and ``export``: confirm the best configuration on fresh seeds, and export
it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from dashboards.fresh_seeds import ARM_SEEDS, FINALISTS, FRESH_SEEDS, MAX_SEEDS_IN_ROUNDS
from loptune.errors import ConfigError, MissingError, StorageError
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
from sweep.commands.arguments import (
    Address,
    Cpus,
    Ended,
    SweepName,
    exit_code_of,
    prepare,
    run_options,
)
from sweep.record.baseline import is_baseline
from sweep.record.best import BestConfiguration, BestWithCaveats, choose_best, scored_configuration
from sweep.record.folder import read_spec
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.search.history import outcome
from sweep.space.arms import arms
from sweep.winner.confirm import again_of, choose, finalists_of, fresh_space
from sweep.winner.ending import report_confirmation
from trainer.tracking.inputs import inherit_inputs

_FRESH = "fresh seeds"
_ROUNDS = "in rounds"
_AGAIN = "again"
# state -> why a configuration cannot be exported
_NOT_COMPLETE = {
    "ABSENT": "there is no configuration {}",
    "RUNNING": "configuration {} is not complete: it is still running",
    "FAIL": "configuration {} is not complete: a trial of it failed",
    "PRUNED": "configuration {} is not complete: it was stopped early",
}


def add_commands(commands: Commands) -> None:
    """Add ``sweep confirm`` and ``export``."""
    add_command(commands, CONFIRM)
    add_command(commands, EXPORT)


def confirm(
    name: SweepName,
    *,
    runs_dir: RunsDir = Path("runs"),
    finalists: Annotated[
        Count | None,
        Option(
            "number of finalists other than the baseline (default: the best of every arm, or "
            f"{FINALISTS})",
            group=_FRESH,
        ),
    ] = None,
    seeds: Annotated[
        Count | None,
        Option(
            f"fresh seeds per finalist (default: {FRESH_SEEDS}; with arms {ARM_SEEDS}; with "
            f"--rounds at most {MAX_SEEDS_IN_ROUNDS})",
            group=_FRESH,
        ),
    ] = None,
    test: Annotated[
        str | None,
        Option(
            "file of held-out problems, read with the column mapping of the set it replaces "
            "(default: evaluation.sets.test, or the split `test`; none with --rounds)",
            group=_FRESH,
        ),
    ] = None,
    rounds: Annotated[
        bool, Option("add fresh seeds in rounds until the comparison is decided", group=_ROUNDS)
    ] = False,
    hours: Annotated[
        Positive | None,
        Option(
            "budget of all rounds in GPU hours (CPU hours if trials have no GPU); implies --rounds",
            group=_ROUNDS,
        ),
    ] = None,
    again: Annotated[
        bool,
        Option(
            "after an undecided confirmation: run its configurations on new seeds, which are "
            "judged separately",
            group=_AGAIN,
        ),
    ] = False,
    configurations: Annotated[
        Sequence[int],
        Option(
            "with --again: numbers of the finalists to run, excluding the baseline (default: all)",
            group=_AGAIN,
            metavar="N",
        ),
    ] = (),
    accept_changes: AcceptChanges = False,
    address: Address = None,
    cpus: Cpus = None,
) -> Ended:
    """Run finalists on fresh seeds and the held-out test set. The search picks the best of many
    scores, so its lead is biased upward; scores on seeds that played no part in the choice are
    unbiased. The verdict goes into the report.

    Raises:
        UserError: there is no such sweep, it is confirmed already, or the runs cannot start.
    """
    sweep = open_sweep(runs_dir, name)
    if again:
        _check_alone(rounds=rounds, hours=hours, finalists=finalists)
    elif configurations:
        raise ConfigError(
            "--configurations chooses among the finalists of an earlier confirmation",
            "command line, --configurations",
            "add --again, or choose the number of finalists with --finalists",
            code="configurations-without-again",
        )
    if rounds or hours:
        return _confirm_in_rounds(
            sweep,
            finalists=finalists,
            seeds=seeds,
            test=test,
            hours=hours,
            accept_changes=accept_changes,
            address=address,
            cpus=cpus,
        )
    folder = sweep.folder.confirmation
    if again:
        chosen = again_of(sweep, configurations)
        folder = sweep.folder.numbered_confirmation(len(sweep.folder.confirmations) + 1)
    else:
        _refuse_second(sweep)
        chosen = finalists_of(sweep, finalist_count(sweep, finalists))
    missing = sweep.planned - sum(trial.ended for trial in sweep.trials())
    if missing:
        print(
            f"{missing} trials of the search have not ended; finalists are chosen from the "
            "complete configurations"
        )
    default_seeds = ARM_SEEDS if sweep.spec.search.tune_within else FRESH_SEEDS
    space = fresh_space(sweep, chosen, seeds or default_seeds, test, folder=folder)
    prepare(space, address, cpus)
    from sweep.driver.run import start_sweep

    fresh = SweepRecord(space, folder)
    inherit_inputs(fresh.folder.root, sweep.folder.root)
    options = run_options(address, cpus, accept_changes=accept_changes)
    code = start_sweep(fresh, replace(options, report=False))
    if code in (0, 1):
        report_confirmation(sweep, fresh.folder.log, ended=True)
    return Ended(fresh, code)


def _check_alone(*, rounds: bool, hours: float | None, finalists: int | None) -> None:
    """Reject options that cannot be combined with ``--again``.

    Raises:
        ConfigError: another option is set.
    """
    excluded = {"--rounds": rounds, "--hours": hours, "--finalists": finalists}
    for option, given in excluded.items():
        if given:
            raise ConfigError(
                f"--again runs the same finalists on a fixed number of seeds, so {option} has "
                "no effect",
                f"command line, {option}",
                f"leave out {option}; --configurations chooses among the finalists",
                code="again-with-other-options",
            )


def _refuse_second(sweep: SweepRecord) -> None:
    """Raise if there is already a confirmation; the error has the command that continues from
    it.
    """
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
    """Return the number of finalists other than the baseline.

    Raises:
        ConfigError: fewer than ``asked`` configurations other than the baseline are complete.
    """
    spec = sweep.spec
    if asked is None:
        return FINALISTS if spec.search.tune_within is None else len(arms(spec)) - 1
    chosen = finalists_of(sweep, asked)  # the baseline comes first if it is complete
    others = len(chosen) - is_baseline(spec, chosen[0])
    if asked > others:
        raise ConfigError(
            f"--finalists {asked}, but only {others} configurations other than the baseline are "
            "complete",
            "command line, --finalists",
            f"see `{sweep.command('status')}`",
            key="finalists",
            code="too-many-finalists",
        )
    return asked


def _confirm_in_rounds(
    sweep: SweepRecord,
    *,
    finalists: int | None,
    seeds: int | None,
    test: str | None,
    hours: float | None,
    accept_changes: bool,
    address: str | None,
    cpus: int | None,
) -> Ended:
    prepare(sweep.spec, address, cpus)
    from sweep.driver.run import resume_sweep
    from sweep.winner.rounds import RoundsOptions, decide

    run = replace(run_options(address, cpus, accept_changes=accept_changes), report=False)
    inherit_inputs(sweep.folder.confirmation.root, sweep.folder.root)
    options = RoundsOptions(
        finalists=finalist_count(sweep, finalists),
        max_seeds=seeds or MAX_SEEDS_IN_ROUNDS,
        hours=hours,
        test=test,
        resume_command=sweep.command("confirm", "--rounds", *run.machine),
    )
    code, rounds = decide(
        sweep, options, lambda fresh: resume_sweep(fresh, run), partial(print, flush=True)
    )
    if rounds.analyses:
        report_confirmation(sweep, sweep.folder.confirmation.log, ended=rounds.outcome != "open")
    return Ended(sweep, code)


@dataclass(frozen=True)
class Exported:
    """A configuration that was written as a run file."""

    configuration: str  # number, score and settings
    caveats: list[str]
    file: Path
    command: str  # command that trains it


def export(
    name: SweepName,
    *,
    runs_dir: RunsDir = Path("runs"),
    output: Annotated[
        Path | None, Option("file to write (default: NAME-best.yaml)", is_path=True)
    ] = None,
    configuration: Annotated[
        int | None,
        Option("configuration number (default: the best of `sweep status`)", excludes="winner"),
    ] = None,
    baseline: Annotated[
        bool,
        Option(
            "export the baseline; if rules were tuned, the best setting of the first rule",
            excludes="winner",
        ),
    ] = False,
) -> Exported:
    """Write the best configuration as a file for `trainer run`. For other programs the file has the
    program's settings. Prints the command that trains the configuration.

    Raises:
        ConfigError: the file exists already.
        MissingError: there is no such sweep, the requested configuration is not complete, or the
            evidence does not identify a best configuration.
        StorageError: the file cannot be written.
    """
    from sweep.record.results import read_results  # pandas takes a second to import

    sweep = open_sweep(runs_dir, name)
    spec = sweep.spec
    chosen = choose_best(sweep, read_results(sweep))
    if configuration is not None:
        best = _requested(sweep, configuration)
    elif baseline:
        best = _requested(sweep, _baseline_number(sweep))
    else:
        best = _chosen_by_evidence(sweep, chosen)
    text = best.text(spec.objective)
    caveats = chosen.caveats
    if best != chosen.best:
        text = best.described(spec.objective)
        caveats = [f"not chosen by the evidence: {caveat}" for caveat in caveats]
    file = output or Path(f"{sweep.folder.name}-best.yaml")
    if file.exists():
        raise ConfigError(
            f"{file} exists already",
            str(file),
            "choose another file with --output",
            key="output",
            code="file-exists",
        )
    overrides = {**best.parameters, "seed": spec.seeds[0]}
    try:
        spec.program.save(overrides, file)
    except OSError as error:
        raise StorageError(
            f"cannot write {file}: {error.strerror}",
            str(file),
            "choose another file with --output",
            key="output",
            code="cannot-write",
        ) from None
    command = spec.program.launch_command(overrides, file, spec.resources.workers_per_trial)
    return Exported(text, caveats, file, command)


def _show_export(exported: Exported) -> None:
    print("\n       ".join([exported.configuration, *exported.caveats]))
    print(exported.command)


def _requested(sweep: SweepRecord, number: int) -> BestConfiguration:
    """Return the configuration with this number.

    Raises:
        MissingError: the configuration does not exist or is not complete.
    """
    best = scored_configuration(sweep, str(number))
    state = _state_of(sweep, number)
    if best is None or state != "COMPLETE":
        raise MissingError(
            f"{sweep.folder.name}: {_NOT_COMPLETE[state].format(number)}",
            str(sweep.folder.root),
            sweep.command("status"),
            key="configuration",
            code="configuration-not-complete",
        )
    return best


def _state_of(sweep: SweepRecord, number: int) -> str:
    """Return the state of the configuration with this number: that of its `outcome`, or ABSENT."""
    for configuration in sweep.configurations:
        if configuration.number == number:
            return outcome(configuration, sweep.spec.seeds).state
    return "ABSENT"


def _baseline_number(sweep: SweepRecord) -> int:
    """Return the number of the baseline if it is complete; else 0, the number of the first listed
    baseline.

    Raises:
        MissingError: no configuration is complete, or the sweep has no baseline.
    """
    first = finalists_of(sweep, 1)[0]
    if is_baseline(sweep.spec, first):
        return first.number
    if sweep.spec.baselines:
        return 0
    raise MissingError(
        f"sweep {sweep.folder.name} has no baseline",
        str(sweep.folder.root),
        _choices(sweep),
        code="no-baseline",
    )


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
    """Return the configuration that the evidence supports.

    Raises:
        MissingError: the evidence supports none, or nothing is complete yet.
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


CONFIRM = printing_command(
    confirm, "sweep confirm quickstart --finalists 1 --seeds 5", exit_code=exit_code_of
)
EXPORT = Command(
    function=export,
    show=_show_export,
    fields=None,
    example="sweep export quickstart --output best.yaml",
)
