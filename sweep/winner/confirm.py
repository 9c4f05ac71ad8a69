"""Run a sweep's finalists on fresh seeds and the held-out test set, without early stopping.

The best of many configurations is biased upward (winner's curse). Its score on seeds that played no
part in the choice is unbiased. The runs form a sweep of their own, NAME-confirm, in the same MLflow
experiment, so they are stopped, resumed and inspected like any other sweep. All seeds run at once,
or in rounds (`rounds`).
"""

from pathlib import Path

from sweep.record.baseline import is_baseline
from sweep.record.sweep_record import SweepRecord
from sweep.search.history import Configuration, ranked
from sweep.space.arms import arm_of, arms
from sweep.space.file import dump_space, resolve_space
from sweep.space.spec import SweepSpec
from trainer.config.yaml_document import YamlDocument, parse_yaml
from trainer.errors import MissingError


def finalists_of(sweep: SweepRecord, finalists: int) -> list[Configuration]:
    """Return the baseline and the best ``finalists`` other configurations.

    Raises:
        MissingError: no configuration is complete.
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


def fresh_space(
    sweep: SweepRecord,
    chosen: list[Configuration],
    seeds: int,
    test: str | None = None,
    sealed: bool = True,
) -> SweepSpec:
    """Return the space of NAME-confirm.

    The chosen configurations become its baselines, on seeds that the sweep did not use; nothing is
    searched. ``test`` is a file of held-out problems.

    Raises:
        ConfigError: the program has no held-out problems.
    """
    spec = sweep.spec
    program = spec.program.held_out_run(spec.objective.metric, test) if sealed else spec.program
    program = program.with_tracking(experiment=spec.experiment)
    confirms = {
        "sweep": sweep.folder.name,
        "configurations": [finalist.number for finalist in chosen],
    }
    first = max(spec.spent_seeds) + 1
    name = sweep.folder.confirmation.name
    data = parse_yaml(dump_space(spec.with_program(program)), name).data | {
        "name": name,
        "confirms": confirms,
        "baselines": [dict(configuration.parameters) for configuration in chosen],
        "search": {"sampler": "random", "configurations": 0},
        "scheduler": "none",
        "seeds": list(range(first, first + seeds)),
    }
    return resolve_space(YamlDocument(data, {}, name), Path.cwd())


def choose(spec: SweepSpec, proposed: list[Configuration], finalists: int) -> list[Configuration]:
    """Return the baseline, if complete, and the best other configurations that are complete on all
    seeds; with arms, the best of each.
    """
    complete = ranked(proposed, spec.seeds, spec.objective)
    if spec.search.tune_within is not None:
        best_of_arm: dict[str, Configuration] = {}
        for configuration in complete:
            best_of_arm.setdefault(arm_of(spec, configuration.parameters), configuration)
        complete = list(best_of_arm.values())
    in_order = sorted(complete, key=lambda configuration: configuration.number)
    baseline = next((each for each in in_order if is_baseline(spec, each)), None)
    others = [configuration for configuration in complete if configuration is not baseline]
    first = [] if baseline is None else [baseline]
    return first + others[:finalists]
