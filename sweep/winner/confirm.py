"""Run a sweep's finalists on fresh seeds and the held-out test set, without early stopping.

The best of many scores is biased upward (winner's curse). The score on seeds that played no
part in the choice is unbiased. The runs form a separate sweep, NAME-confirm, in the same MLflow
experiment, so they are stopped, resumed and inspected like any other sweep. All seeds run at once,
or in rounds (`rounds`).

An undecided confirmation can be followed by another one, NAME-confirm-2, on seeds that neither the
search nor a confirmation has used. Its verdict leaves out the earlier confirmation, whose scores
led to it and so are no longer fresh. Because each confirmation is another chance of a false
positive, p-values are doubled for each earlier confirmation; all confirmations together then report
a false improvement with a probability below 10%.
"""

from collections.abc import Sequence

from loptune.errors import ConfigError, MissingError
from sweep.record.baseline import first_baseline, is_baseline
from sweep.record.folder import SweepFolder, read_spec
from sweep.record.sweep_record import SweepRecord
from sweep.search.history import Configuration, ranked
from sweep.space.arms import arm_of, arms
from sweep.space.fixed import fixed_space
from sweep.space.spec import SweepSpec


def finalists_of(sweep: SweepRecord, finalists: int) -> list[Configuration]:
    """Return the baseline and the best ``finalists`` other configurations.

    Raises:
        MissingError: no configuration is complete or, with arms, no configuration of the first arm.
    """
    chosen = choose(sweep.spec, sweep.configurations, finalists)
    name = sweep.folder.name
    root = str(sweep.folder.root)
    if not chosen:
        raise MissingError(
            f"no configuration of {name} is complete yet",
            root,
            sweep.command("status"),
            code="nothing-complete",
        )
    if sweep.spec.search.tune_within is not None and not is_baseline(sweep.spec, chosen[0]):
        first = next(iter(arms(sweep.spec)))
        raise MissingError(
            f"no configuration of {first} in {name} is complete, so there is no baseline",
            root,
            sweep.command("status"),
            code="no-complete-baseline",
        )
    return chosen


def again_of(sweep: SweepRecord, numbers: Sequence[int]) -> list[Configuration]:
    """Return the baseline and the configurations with these numbers, for another confirmation;
    without numbers, all configurations of the last confirmation.

    Raises:
        MissingError: there is no confirmation yet, or the last one has not ended.
        ConfigError: a configuration was not in the last confirmation.
    """
    from sweep.record.recorded_rounds import recorded_rounds  # scipy takes a second to import

    name = sweep.folder.name
    folder = sweep.folder.confirmation
    if not folder.event_log.exists():
        raise MissingError(
            f"{name} has no confirmation yet",
            str(folder.root),
            sweep.command("confirm"),
            code="not-confirmed-yet",
        )
    last = SweepRecord(read_spec(folder), folder)
    decision = recorded_rounds(last)
    to_continue = ""
    if decision is not None and decision.outcome == "open":
        to_continue = sweep.command("confirm", "--rounds")
    elif not all(trial.ended for trial in last.trials()):
        to_continue = last.command("resume")
    if to_continue:
        raise MissingError(
            f"{folder.name} has not ended",
            str(folder.root),
            to_continue,
            code="confirmation-not-ended",
        )
    assert last.spec.confirms is not None
    known = last.spec.confirms.configurations
    for number in numbers:
        if number not in known:
            listed = ", ".join(map(str, known))
            raise ConfigError(
                f"configuration {number} was not in {folder.name}",
                "command line, --configurations",
                f"choose from {listed}; other finalists need a separate sweep",
                key="configurations",
                code="not-a-finalist",
            )
    wanted = {known[0], *(numbers or known)}
    by_number = {configuration.number: configuration for configuration in sweep.configurations}
    return [by_number[number] for number in known if number in wanted]


def _used_seeds(sweep: SweepRecord) -> set[int]:
    """Return the seeds of the search and of all confirmations."""
    used = set(sweep.spec.used_seeds)
    for folder in sweep.folder.confirmations:
        used.update(read_spec(folder).seeds)
    return used


def fresh_space(
    sweep: SweepRecord,
    chosen: list[Configuration],
    seeds: int,
    test: str | None = None,
    held_out: bool = True,
    *,
    folder: SweepFolder | None = None,
) -> SweepSpec:
    """Return the space of a confirmation.

    The chosen configurations become its baselines, on seeds that neither the sweep nor an earlier
    confirmation has used; nothing is searched.

    Args:
        sweep: the sweep to confirm.
        chosen: the configurations, baseline first.
        seeds: number of fresh seeds.
        test: file of held-out problems; None: the problems that the program declares.
        held_out: whether the runs evaluate on held-out problems.
        folder: folder of the confirmation; None: the folder of the latest confirmation, or of the
            first if none was started.

    Raises:
        ConfigError: ``held_out`` is set, and the program has no held-out problems or cannot use
            ``test``.
    """
    spec = sweep.spec
    program = (
        spec.program.held_out_run(spec.objective.metrics[0], test) if held_out else spec.program
    )
    program = program.with_tracking(experiment=spec.experiment)
    first = max(_used_seeds(sweep)) + 1
    confirms = {
        "sweep": sweep.folder.name,
        "configurations": [finalist.number for finalist in chosen],
        "tune_within": spec.search.tune_within,
    }
    return fixed_space(
        spec.with_program(program),
        name=(folder or sweep.folder.confirmation).name,
        configurations=[configuration.parameters for configuration in chosen],
        seeds=range(first, first + seeds),
        changes={"confirms": confirms},
    )


def choose(spec: SweepSpec, proposed: list[Configuration], finalists: int) -> list[Configuration]:
    """Return the baseline, if complete, and the best ``finalists`` other configurations that are
    complete on all seeds. With arms, only the best configuration of each arm is considered.

    Args:
        spec: the space of the sweep.
        proposed: all configurations that the sweep has proposed.
        finalists: number of configurations other than the baseline.
    """
    complete = ranked(proposed, spec.seeds, spec.objective)
    if spec.search.tune_within is not None:
        best_of_arm: dict[str, Configuration] = {}
        for configuration in complete:
            best_of_arm.setdefault(arm_of(spec, configuration.parameters), configuration)
        complete = list(best_of_arm.values())
    baseline = first_baseline(spec, complete)
    if baseline is None:
        return complete[:finalists]
    others = [configuration for configuration in complete if configuration is not baseline]
    return [baseline, *others[:finalists]]
