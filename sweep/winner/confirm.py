"""Running a sweep's finalists again: fresh seeds, no early stopping, and the sealed test split.

The best of many configurations looks better than it is, because it was chosen for its luck too. Its score on
seeds that played no part in the choice is free of that. The runs form a sweep of their own, NAME-confirm, in the
same MLflow experiment, so that they are stopped, resumed and looked at like any other.
"""

from pathlib import Path
from typing import Any

import yaml

from sweep.record.folder import SweepFolder, command
from sweep.record.summary import configurations
from sweep.search.history import Configuration, outcome
from sweep.space.file import dump_space, resolve_space
from sweep.space.points import trial_config
from sweep.space.spec import SweepSpec
from trainer.config.yaml_document import YamlDocument
from trainer.errors import ConfigError, MissingError

SUFFIX = "-confirm"
TEST_SET = "test"
_FILES = (".parquet", ".jsonl", ".json", ".csv")


def confirmation_space(
    spec: SweepSpec, folder: SweepFolder, finalists: int, seeds: int, test: str | None = None
) -> SweepSpec:
    """The space NAME-confirm: the baseline and the best configurations, each on fresh seeds.

    Args:
        spec: the sweep to confirm.
        folder: its folder.
        finalists: how many configurations besides the baseline.
        seeds: how many, from the first that the sweep did not use.
        test: file of the sealed problems; None takes the split ``test`` of what the objective is measured on.

    Raises:
        MissingError: no configuration has run to its end.
        ConfigError: the evaluation set is a file, which has no splits, and ``test`` is None.
    """
    chosen = choose(spec, configurations(folder), finalists)
    if not chosen:
        raise MissingError(
            f"no configuration of {folder.name} is complete yet", str(folder.root), command("status", folder)
        )
    tags = {
        "loptune.phase": "confirm",
        "loptune.confirms": folder.name,
    }
    return fresh_space(spec, folder, chosen, SUFFIX, seeds, tags, _with_test_set(spec, test))


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
    data["trainer"]["config"] = trainer
    data["baselines"] = [dict(one.parameters) for one in chosen]
    data["search"] = {"sampler": "random", "configurations": 0}
    data["scheduler"], data["decide"] = "none", None
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
