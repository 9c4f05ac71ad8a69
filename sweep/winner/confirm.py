"""Running a sweep's finalists again: fresh seeds, no early stopping, and the sealed test split.

The best of many configurations looks better than it is, because it was chosen for its luck too. Its score on
seeds that played no part in the choice is free of that. The runs form a sweep of their own, NAME-confirm, in the
same MLflow experiment, so that they are stopped, resumed and looked at like any other. Finalists that were found
with adapters can be repeated with full weights, as NAME-full.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from sweep.record.folder import SweepFolder, command
from sweep.record.summary import configurations
from sweep.search.history import Configuration, outcome
from sweep.space.file import dump_space, resolve_space
from sweep.space.full import full_point, full_space, trains_adapters
from sweep.space.points import Space, fingerprint, trial_config
from sweep.space.spec import SweepSpec
from trainer.config.yaml_document import YamlDocument
from trainer.errors import ConfigError, MissingError

SUFFIX = "-confirm"
FULL_SUFFIX = "-full"
WEIGHTS_TAG = "loptune.weights"  # of the MLflow runs of NAME-full: full
TEST_SET = "test"
_FILES = (".parquet", ".jsonl", ".json", ".csv")


def confirmation_space(
    spec: SweepSpec, folder: SweepFolder, finalists: int, seeds: int, test: str | None = None, full: bool = False
) -> SweepSpec:
    """The space NAME-confirm or NAME-full: the baseline and the best configurations, each on fresh seeds.

    Args:
        spec: the sweep to confirm.
        folder: its folder.
        finalists: how many configurations besides the baseline.
        seeds: how many, from the first that the sweep did not use.
        test: file of the sealed problems; None takes the split ``test`` of what the objective is measured on.
        full: train full weights in place of adapters.

    Raises:
        MissingError: no configuration has run to its end.
        ConfigError: the evaluation set is a file, which has no splits, and ``test`` is None; or full weights are
            wanted of a sweep that does not say how, or that has trained them.
    """
    found = configurations(folder)
    if full:
        spec, chosen = _with_full_weights(spec, folder, found, finalists)
    else:
        chosen = choose(spec, found, finalists)
    if not chosen:
        raise MissingError(
            f"no configuration of {folder.name} is complete yet", str(folder.root), command("status", folder)
        )
    tags = {
        "loptune.phase": "confirm",
        "loptune.confirms": folder.name,
        **({WEIGHTS_TAG: "full"} if full else {}),
    }
    suffix = FULL_SUFFIX if full else SUFFIX
    return fresh_space(spec, folder, chosen, suffix, seeds, tags, _with_test_set(spec, test))


def fresh_space(
    spec: SweepSpec,
    folder: SweepFolder,
    chosen: list[Configuration],
    suffix: str,
    seeds: int,
    tags: dict[str, str],
    trainer: dict[str, Any] | None = None,
) -> SweepSpec:
    """A space that runs chosen configurations of a sweep on seeds it did not use, and nothing else.

    Args:
        spec: the sweep.
        folder: its folder.
        chosen: configurations of the sweep, which become baselines 0, 1, ... of the new one.
        suffix: what its name has behind the sweep's.
        seeds: how many, from the first that the sweep did not use.
        tags: of its MLflow runs.
        trainer: the trainer configuration; the sweep's if None.
    """
    data = yaml.safe_load(dump_space(spec))
    trainer = trainer or spec.base.model_dump(mode="json")
    trainer["tracking"]["experiment"] = spec.base.tracking.experiment or spec.name
    finalists = {"loptune.finalists": ",".join(str(one.number) for one in chosen)}
    trainer["tracking"]["tags"] = {**spec.base.tracking.tags, **tags, **finalists}
    data["name"] = folder.name + suffix
    data["trainer"] = {"config": trainer}  # with the sweep's overrides, which would take the test set away again
    data["baselines"] = [dict(one.parameters) for one in chosen]
    data["search"] = {"sampler": "random", "configurations": 0}
    data["scheduler"], data["decide"], data["full"] = "none", None, None
    first = max(spec.seeds) + 1
    data["seeds"] = list(range(first, first + seeds))
    return resolve_space(YamlDocument(data, {}, f"{folder.name}{suffix}"), Path.cwd())


def choose(spec: SweepSpec, proposed: list[Configuration], finalists: int) -> list[Configuration]:
    """The baseline, if it has run, and the best others of those complete on all seeds."""
    complete = [found for found in proposed if outcome(found, spec.seeds).state == "COMPLETE"]
    base = [found for found in complete if is_baseline(spec, found)][:1]
    sign = 1 if spec.objective.mode == "max" else -1

    def score(found: Configuration) -> float:
        value = outcome(found, spec.seeds).score
        assert value is not None, "a complete configuration has a score"
        return sign * value

    others = sorted((found for found in complete if found not in base), key=score, reverse=True)
    return base + others[:finalists]


def _with_full_weights(
    spec: SweepSpec, folder: SweepFolder, found: list[Configuration], finalists: int
) -> tuple[SweepSpec, list[Configuration]]:
    """The space with full weights, and what `choose` would choose of configurations that differ in it."""
    if not trains_adapters(spec):
        raise ConfigError(
            f"the trials of {folder.name} train full weights already",
            str(folder.space),
            command("confirm", folder),
        )
    if spec.full is None:
        raise ConfigError(
            f"the space of {folder.name} does not say how full weights are trained: it has no section `full`",
            str(folder.space),
            "remove its first line and add one at the end, such as "
            "full: {overrides: {optim.lr: 1.0e-6}, resources: {gpus_per_trial: 4, workers_per_trial: 4}}",
        )
    full, different = full_space(spec), dict[str, Configuration]()
    ranked = choose(spec, found, len(found))
    for one in ranked:  # those that differ in their adapters alone are the same now: the best stands for them
        parameters = full_point(spec, one.parameters)
        mark = fingerprint(Space(full.parameters).resolve(parameters, full.base))
        different.setdefault(mark, replace(one, parameters=parameters))
    with_baseline = bool(ranked) and is_baseline(spec, ranked[0])
    return full, list(different.values())[: finalists + with_baseline]


def is_baseline(spec: SweepSpec, configuration: Configuration) -> bool:
    """Whether others are held against it: the first listed baseline; one without AR and Lopti where none is."""
    if spec.baselines:
        return configuration.number == 0
    algorithm = trial_config(spec.base, configuration.resolved, spec.seeds[0]).algorithm
    return algorithm.ar_alpha == 0 and algorithm.lopti_eta == 0


def _with_test_set(spec: SweepSpec, test: str | None) -> dict[str, Any]:
    data = spec.base.model_dump(mode="json")
    sets = data["evaluation"]["sets"]
    if TEST_SET in sets:
        return data
    measured = spec.objective.metric.split("/")[-1]  # eval/accuracy/SET
    first = sets.get(measured) or next(iter(sets.values()))
    if test is None and first["source"].endswith(_FILES):
        raise ConfigError(
            "the evaluation set is a file, which has no test split",
            first["source"],
            "name another with --test FILE",
        )
    sets[TEST_SET] = {**first, "source": test} if test is not None else {**first, "split": "test"}
    return data
