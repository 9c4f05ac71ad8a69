"""Checks of a search space against the trainer's configuration, made before anything starts."""

import itertools
import math
import random
from collections.abc import Mapping
from typing import Any

from sweep.space.arms import arms
from sweep.space.parameters import ParameterSpec, same_value
from sweep.space.points import Parameters, Space, allowed_values, fingerprint, is_section, is_switch, searched_values
from sweep.space.spec import SweepSpec
from trainer.config.schema import TrainConfig, apply_overrides, check_key, dotted_keys
from trainer.config.yaml_document import YamlDocument, nearest
from trainer.errors import ConfigError
from trainer.metrics.declared import METRICS, declaration

_MAX_CORNERS = 512
MAX_GRID = 10_000


def check_space(spec: SweepSpec, document: YamlDocument) -> None:
    """Refuse a space that could not run.

    Raises:
        ConfigError: the first thing that is wrong, with file, line and key.
    """
    _check_objective(spec, document)
    space = _check_conditions(spec.parameters, document)
    _check_keys(spec, document)
    _check_values(spec, document)
    _check_baselines(spec, space, document)
    _check_combinations(spec.base, space, document)
    _check_search(spec, space, document)
    _check_arms(spec, document)
    _check_scheduler(spec, document)
    _check_workers(spec, document)
    _check_servers(spec, document)
    _check_device(spec, document)


def _check_objective(spec: SweepSpec, document: YamlDocument) -> None:
    metric = spec.objective.metric
    where = document.where(("objective", "metric"))
    hint = nearest(metric, [name for name in METRICS if name.startswith("eval/")], "trainer metrics eval/")
    try:
        declaration(metric)
    except KeyError:
        raise ConfigError(f"unknown metric {metric}", where, hint) from None
    if not metric.startswith("eval/"):
        raise ConfigError(f"{metric} is not measured by evaluations", where, hint)


def _check_keys(spec: SweepSpec, document: YamlDocument) -> None:
    used = {parent for parameter in spec.parameters.values() for parent in parameter.when}
    if "seed" in spec.trainer.overrides:
        raise ConfigError(
            "the seed of a trial comes from `seeds`",
            document.where(("trainer", "overrides", "seed")),
            "write seeds: [0, 1]",
        )
    for key, parameter in spec.parameters.items():
        where = document.where(("parameters", key))
        if key == "seed":
            raise ConfigError("seeds are not searched", where, "write seeds: [0, 1]")
        if key in spec.trainer.overrides:
            raise ConfigError(f"{key} is both searched and fixed in trainer.overrides", where, "remove one of the two")
        if is_section(key):
            names = [name for name in dotted_keys() if name.startswith(f"{key}.")]
            raise ConfigError(f"{key} is a section, not a value", where, nearest(key, names))
        if is_switch(key):
            _check_switch(key, parameter, used, where)
        else:
            check_key(key, document.place(("parameters", key)))


def _check_switch(key: str, parameter: ParameterSpec, used: set[str], where: str) -> None:
    if key not in used:
        meant = next((name for name in dotted_keys() if name.endswith(f".{key}")), None)
        hint = f"did you mean {meant}?" if meant else nearest(key, dotted_keys(), "trainer options")
        raise ConfigError(f"switch {key} is used in no `when` and is no key of the trainer", where, hint)
    if parameter.options is None:
        raise ConfigError(f"switch {key} needs values to choose from", where, "write choice: [false, true]")
    if parameter.has_otherwise:
        raise ConfigError(f"switch {key} sets nothing, so `else` has no meaning", where, "remove else")


def _check_conditions(parameters: Mapping[str, ParameterSpec], document: YamlDocument) -> Space:
    for key, parameter in parameters.items():
        for parent, condition in parameter.when.items():
            where = document.where(("parameters", key, "when", parent))
            if parent not in parameters:
                raise ConfigError(
                    f"the condition of {key} names {parent}, which is no parameter here",
                    where,
                    nearest(parent, parameters),
                )
            options = parameters[parent].options
            if options is None:
                raise ConfigError(
                    f"the condition of {key} names {parent}, which has no list of values",
                    where,
                    f"give {parent} a choice, or add a switch",
                )
            for value in allowed_values(condition):
                if not parameters[parent].contains(value):
                    raise ConfigError(
                        f"impossible condition of {key}: {parent} is never {value!r}",
                        where,
                        f"valid: {', '.join(map(repr, options))}",
                    )
    try:
        space = Space(parameters)
    except ValueError as circle:
        raise ConfigError(
            f"conditions lead in a circle: {circle}", document.where(("parameters",)), "remove one of them"
        ) from None
    for key in parameters:
        _check_satisfiable(key, space, document)
    return space


def _check_satisfiable(key: str, space: Space, document: YamlDocument) -> None:
    """Refuse a parameter whose conditions, with those of the parameters they name, exclude each other."""
    required: dict[str, list[Any]] = {}
    pending = [key]
    while pending:
        for parent, condition in space.parameters[pending.pop()].when.items():
            values = allowed_values(condition)
            kept = [
                value for value in required.get(parent, values) if any(same_value(value, other) for other in values)
            ]
            if not kept:
                raise ConfigError(
                    f"impossible condition of {key}: nothing is left for {parent}",
                    document.where(("parameters", key, "when")),
                    "change one of the conditions on the way",
                )
            required[parent] = kept
            pending.append(parent)


def _check_values(spec: SweepSpec, document: YamlDocument) -> None:
    """Refuse a bound, choice or `else` that the trainer's field does not take."""
    for key, parameter in spec.parameters.items():
        if is_switch(key):
            continue
        values = [(parameter.kind, value) for value in parameter.extremes]
        if parameter.has_otherwise:
            values.append(("else", parameter.otherwise))
        for entry, value in values:
            _check_field(spec.base, key, value, document.where(("parameters", key, entry)))


def _check_field(base: TrainConfig, key: str, value: Any, where: str) -> None:
    try:
        apply_overrides(base, {key: value})
    except ConfigError as error:
        # Only what is wrong with this very field: other fields may make the value possible.
        if error.key == key or error.key.startswith(f"{key}."):
            raise ConfigError(error.what, where, error.hint) from None


def _check_baselines(spec: SweepSpec, space: Space, document: YamlDocument) -> None:
    seen: dict[str, int] = {}
    for index, baseline in enumerate(spec.baselines):
        for key, value in baseline.items():
            where = document.where(("baselines", index, key))
            if key not in space.parameters:
                raise ConfigError(
                    f"baseline {index} sets {key}, which is not searched",
                    where,
                    nearest(key, space.parameters) if space.parameters else "add it to parameters",
                )
            if not is_switch(key):
                _check_field(spec.base, key, value, where)
            elif not space.parameters[key].contains(value):
                options = ", ".join(map(repr, space.parameters[key].options or []))
                raise ConfigError(f"{key} is never {value!r}", where, f"valid: {options}")
        entry = document.where(("baselines", index))
        point = _complete_baseline(index, baseline, space, spec.base, entry)
        _try_point(spec.base, space, point, f"baseline {index}", entry)
        mark = fingerprint(space.resolve(point, spec.base))
        if mark in seen:
            raise ConfigError(f"baselines {seen[mark]} and {index} are the same configuration", entry, "remove one")
        seen[mark] = index


def _complete_baseline(
    index: int, baseline: Mapping[str, Any], space: Space, base: TrainConfig, where: str
) -> Parameters:
    try:
        point = space.complete(baseline, base)
    except KeyError as error:
        key = error.args[0]
        raise ConfigError(f"baseline {index} does not say {key}", where, f"add {key}: VALUE") from None
    for key in baseline:
        if key not in point:
            when = space.parameters[key].when
            raise ConfigError(
                f"baseline {index} sets {key}, which is only used when {_show(when)}",
                where,
                f"remove {key}, or set {_show(when)}",
            )
    return point


def _check_combinations(base: TrainConfig, space: Space, document: YamlDocument) -> None:
    """Try the corners of the space: fields may refuse each other although each value is fine."""
    corners = list(itertools.islice(space.grid(lambda parameter: parameter.extremes), _MAX_CORNERS + 1))
    if len(corners) > _MAX_CORNERS:
        # The first ones would all share the first parameters' first values.
        chance = random.Random(0)
        corners = [space.walk(lambda _, parameter: chance.choice(parameter.extremes)) for _ in range(_MAX_CORNERS)]
    for point in corners:
        _try_point(base, space, point, f"the combination {_show(point)}", document.where(("parameters",)))


def _try_point(base: TrainConfig, space: Space, point: Parameters, what: str, where: str) -> None:
    try:
        apply_overrides(base, space.resolve(point, base))
    except ConfigError as error:
        raise ConfigError(f"{what} is refused by the trainer: {error.what}", where, error.hint) from None


def _check_search(spec: SweepSpec, space: Space, document: YamlDocument) -> None:
    search, where = spec.search, document.where(("search", "sampler"))
    if not space.parameters and (search.configurations or not spec.baselines):
        raise ConfigError("nothing to search: no parameters", document.where(("parameters",)), "add a parameter")
    if not spec.baselines and search.configurations == 0:
        raise ConfigError(
            "nothing to run: no baselines and no configurations",
            document.where(("search", "configurations")),
            "raise search.configurations",
        )
    if search.sampler == "grid":
        for key, parameter in space.parameters.items():
            if parameter.options is None:
                hint = f"write {key}: {{choice: [...]}} or {{int: [low, high, step]}}"
                raise ConfigError(
                    f"a grid needs values to go through, and {key} is {parameter.kind}",
                    document.where(("parameters", key)),
                    hint,
                )
        if space.grid_size(MAX_GRID + 1) > MAX_GRID:
            raise ConfigError(f"the grid has more than {MAX_GRID} points", where, "use sampler: random")


def _check_arms(spec: SweepSpec, document: YamlDocument) -> None:
    key, where = spec.search.tune_within, document.where(("search", "tune_within"))
    if key is None:
        return
    choices = [name for name, one in spec.parameters.items() if one.kind == "choice" and not one.when]
    if key not in choices:
        found = "is no parameter" if key not in spec.parameters else "is no unconditional choice"
        hint = nearest(key, choices) if choices else "add a switch, such as rule: {choice: [GRPO, AR]}"
        raise ConfigError(f"tune_within names {key}, which {found}", where, hint)
    counts = {name: len(arm.baselines) for name, arm in arms(spec).items()}
    if spec.search.configurations != 0 and len(set(counts.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in counts.items())
        hint = f"list as many baselines for every value of {key}, or none"
        raise ConfigError(f"budgets differ: baselines add to them ({told})", document.where(("baselines",)), hint)


def _check_scheduler(spec: SweepSpec, document: YamlDocument) -> None:
    for name, rule in (("asha", spec.scheduler.asha), ("median", spec.scheduler.median)):
        evaluations = spec.evaluations or math.inf
        if rule is not None and rule.grace_period > evaluations:
            raise ConfigError(
                f"grace_period {rule.grace_period} is longer than a trial, which has {evaluations} evaluations",
                document.where(("scheduler", name, "grace_period")),
                f"write at most {evaluations}",
            )


def _check_workers(spec: SweepSpec, document: YamlDocument) -> None:
    workers, where = spec.resources.workers_per_trial, document.where(("resources", "workers_per_trial"))
    if workers == 1:
        return
    for key in ("parallel.strategy", "rollout.prompts_per_step", "optim.update_batch_size"):
        for value in searched_values(spec, key):
            if value == "none":
                raise ConfigError(
                    f"{workers} workers a trial, but the trainer's parallel.strategy is none",
                    where,
                    "add trainer.parallel.strategy=ddp or trainer.parallel.strategy=deepspeed",
                )
            if isinstance(value, int) and value % workers:
                raise ConfigError(
                    f"{key} {value} cannot be split over {workers} workers", where, f"make it a multiple of {workers}"
                )


def _check_servers(spec: SweepSpec, document: YamlDocument) -> None:
    rollout = spec.base.rollout
    if rollout.engine != "transformers" and rollout.vllm.mode == "server" and spec.limits.max_concurrent != 1:
        raise ConfigError(
            "trials at the same time would overwrite each other's weights on the vLLM servers",
            document.where(("limits", "max_concurrent")),
            "add limits.max_concurrent=1, or trainer.rollout.vllm.mode=colocate",
        )


def _check_device(spec: SweepSpec, document: YamlDocument) -> None:
    if spec.base.parallel.device == "cuda" and spec.resources.gpus_per_trial == 0:
        raise ConfigError(
            "the trainer's configuration is for GPUs, and a trial is given none",
            document.where(("resources", "gpus_per_trial")),
            "add resources.gpus_per_trial=N, or trainer.parallel.device=cpu to compute on the CPU all the same",
        )


def _show(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
