"""Check a search space against its program before anything starts."""

import itertools
import json
import math
import random
import re
from collections.abc import Mapping
from typing import Any

from loptune.errors import ConfigError, shortened
from loptune.yaml_document import KeyPath, YamlDocument, nearest
from sweep.programs.base import Overrides, SearchableProgram
from sweep.space.arms import arms
from sweep.space.parameters import ParameterSpec
from sweep.space.points import MissingValueError, Parameters, Space, allowed_values, fingerprint
from sweep.space.scoring import HOURS, axes
from sweep.space.spec import MULTI_OBJECTIVE, STEP, SchedulerSpec, SweepSpec

_CONFIRMATION = re.compile(r"-confirm(-\d+)?$")
_MAX_CORNERS = 512
MAX_GRID = 10_000


def check_space(spec: SweepSpec, document: YamlDocument) -> None:
    """Check that a space can run.

    Raises:
        ConfigError: the first error, with file, line and key.
    """
    if _CONFIRMATION.search(spec.name) and spec.confirms is None:
        raise document.error(
            "names that end in -confirm or -confirm-N are reserved for confirmations",
            ("name",),
            "choose a name with another ending",
            code="reserved-name",
        )
    objective = spec.objective
    _check_axis(spec, document)
    for key in ("worthwhile", "published"):
        is_accuracy = spec.trainer and objective.metrics[0].startswith("eval/accuracy")
        if is_accuracy and (getattr(objective, key) or 0) >= 1:
            raise document.error(
                "accuracy cannot improve by 1 (100%) or more",
                ("objective", key),
                "write the improvement as a fraction, such as 0.05",
                code="improvement-of-100-percent",
            )
    space = _check_conditions(spec.parameters, document)
    _check_keys(spec, document)
    _check_combinations(spec.program, space, document)
    _check_baselines(spec, space, document)
    # a parameter may change what a metric measures, so metrics are checked after its values
    for metric in objective.metrics:
        spec.program.check_metric(metric, "metric", spec.values_of_trials(), document)
    for metric in objective.guarded:
        check_recorded(metric, "guards", spec, document)
    _check_second(spec, document)
    _check_search(spec, space, document)
    _check_arms(spec, document)
    _check_scheduler(spec, document)
    _check_limits(spec, document)
    values = spec.values_of_trials(listed=True)
    spec.program.check_machine(values, spec.resources, spec.limits.max_concurrent, document)


def _check_axis(spec: SweepSpec, document: YamlDocument) -> None:
    axis = spec.objective.axis
    if axis == STEP:
        return
    known = list(axes(spec))
    if axis not in known and (spec.trainer is not None or axis in HOURS):
        raise document.error(
            f"the trials of this sweep do not record {axis}",
            ("objective", "axis"),
            nearest(axis, [STEP, *known]),
            code="unknown-axis",
        )
    if spec.scheduler != SchedulerSpec():
        raise document.error(
            f"ASHA compares trials at equal steps, but the objective compares them at equal {axis}",
            ("scheduler",),
            "write scheduler: none, or leave out objective.axis and objective.at",
            code="asha-along-an-axis",
        )


def check_recorded(metric: str, key: str, spec: SweepSpec, document: YamlDocument) -> None:
    """Check that trials record a guard or the second objective: an amount such as gpu_hours, or a
    metric of the program.

    Args:
        metric: the metric or the amount.
        key: its key below ``objective``.
        spec: the search space.
        document: file of the space.

    Raises:
        ConfigError: trials do not record it (the error suggests the nearest choice), or a parameter
            changes how it is measured.
    """
    amounts = axes(spec)
    if metric in amounts:
        return
    if metric in HOURS:  # hours of the device that the trials do not use
        raise document.error(
            f"the trials of this sweep do not record {metric}",
            ("objective", key),
            nearest(metric, list(amounts)),
            code="unknown-axis",
        )
    spec.program.check_metric(metric, key, spec.values_of_trials(), document)


def _check_second(spec: SweepSpec, document: YamlDocument) -> None:
    second = spec.objective.second
    sampler = spec.search.sampler
    if second is None and sampler in MULTI_OBJECTIVE:
        raise document.error(
            f"{sampler} searches with two objectives, and this space has one",
            ("search", "sampler"),
            "add objective.second, such as {metric: gpu_hours}, or write sampler: auto",
            code="one-objective",
        )
    if second is None:
        return
    check_recorded(second.metric, "second", spec, document)
    second.direction_at(document.where(("objective", "second")))
    if sampler in MULTI_OBJECTIVE and spec.scheduler != SchedulerSpec():
        raise document.error(
            f"ASHA stops trials only by the score, and {sampler} would use the {second.metric} of "
            "a stopped trial as the value of a complete one",
            ("scheduler",),
            "write scheduler: none, or sampler: auto",
            code="two-objectives-stopped-early",
        )


def _check_keys(spec: SweepSpec, document: YamlDocument) -> None:
    used: set[str] = set()
    for parameter in spec.parameters.values():
        used.update(parameter.when)
    for key, parameter in spec.parameters.items():
        if spec.program.has(key):
            spec.program.check_key(key, document)
        else:
            _check_switch(
                key, parameter, used, spec.program.keys(), document.where(("parameters", key))
            )


def _check_switch(
    key: str, parameter: ParameterSpec, used: set[str], keys: list[str], where: str
) -> None:
    if key not in used:
        hint = nearest(key, keys, "trainer options")
        ending_alike = [name for name in keys if name.endswith(f".{key}")]
        if ending_alike:
            hint = f"did you mean {ending_alike[0]}?"
        raise ConfigError(
            f"{key} is neither a key of the program nor a switch used by a `when`",
            where,
            hint,
            key=key,
            code="unknown-parameter",
        )
    if parameter.has_else:
        raise ConfigError(
            f"switch {key} has an `else`, which has no effect: an inactive switch satisfies no "
            "`when`",
            where,
            f"remove `else`, or remove `when` from {key}",
            key=key,
            code="else-on-switch",
        )
    if parameter.options is None:
        raise ConfigError(
            f"switch {key} needs a list of values",
            where,
            "write choice: [false, true]",
            key=key,
            code="continuous-switch",
        )


def _check_conditions(parameters: Mapping[str, ParameterSpec], document: YamlDocument) -> Space:
    for key, parameter in parameters.items():
        for parent, condition in parameter.when.items():
            where = document.where(("parameters", key, "when", parent))
            if parent not in parameters:
                raise ConfigError(
                    f"the condition of {key} uses {parent}, which is not a parameter of this space",
                    where,
                    nearest(parent, parameters),
                    key=key,
                    code="unknown-parent",
                )
            options = parameters[parent].options
            if options is None:
                raise ConfigError(
                    f"the condition of {key} uses {parent}, which has no list of values",
                    where,
                    f"write {parent} as a choice, or add a switch",
                    key=key,
                    code="continuous-parent",
                )
            for value in allowed_values(condition):
                if not parameters[parent].contains(value):
                    raise ConfigError(
                        f"impossible condition of {key}: {parent} is never {value!r}",
                        where,
                        f"valid: {shortened(', '.join(map(repr, options)), 200)}",
                        key=key,
                        code="impossible-condition",
                    )
    try:
        space = Space(parameters)
    except ValueError as circle:
        raise document.error(
            f"circular conditions: {circle}",
            ("parameters",),
            "remove one of them",
            code="circular-conditions",
        ) from None
    for key in parameters:
        if parent := space.excluding(key):
            raise document.error(
                f"{key} is never active: no value of {parent} satisfies all conditions",
                ("parameters", key, "when"),
                f"change its conditions on {parent}, or those of its parents",
                code="never-active",
            )
    return space


def _check_baselines(spec: SweepSpec, space: Space, document: YamlDocument) -> None:
    seen: dict[str, int] = {}
    for index, baseline in enumerate(spec.baselines):
        for key, value in baseline.items():
            where = document.where(("baselines", index, key))
            if key not in space.parameters:
                hint = "add it to parameters"
                if space.parameters:
                    hint = nearest(key, space.parameters)
                raise ConfigError(
                    f"baseline {index} sets {key}, which is not searched",
                    where,
                    hint,
                    key=key,
                    code="baseline-key-not-searched",
                )
            if not spec.program.has(key) and not space.parameters[key].contains(value):
                options = ", ".join(map(repr, space.parameters[key].options or []))
                raise ConfigError(
                    f"{key} cannot be {value!r}",
                    where,
                    f"valid: {options}",
                    key=key,
                    code="baseline-outside-choice",
                )
        entry = document.where(("baselines", index))
        point = _complete_baseline(index, baseline, space, spec.program, entry)
        _try_point(spec.program, space, point, f"baseline {index}", ("baselines", index), document)
        mark = fingerprint(space.resolve(point, spec.program))
        if mark in seen:
            raise ConfigError(
                f"baselines {seen[mark]} and {index} are the same configuration",
                entry,
                "remove one",
                code="repeated-baseline",
            )
        seen[mark] = index


def _complete_baseline(
    index: int, baseline: Overrides, space: Space, program: SearchableProgram, where: str
) -> Parameters:
    try:
        point = space.complete(baseline, program)
    except MissingValueError as error:
        raise ConfigError(
            f"baseline {index} is missing {error.key}",
            where,
            f"add {error.key}: VALUE",
            key=error.key,
            code="baseline-lacks-key",
        ) from None
    for key in baseline:
        if key not in point:
            when = space.parameters[key].when
            raise ConfigError(
                f"baseline {index} sets {key}, which is only used when {_show_conditions(when)}",
                where,
                f"remove {key}, or set {_fulfil(when)}",
                key=key,
                code="baseline-key-inactive",
            )
    return point


def _check_combinations(program: SearchableProgram, space: Space, document: YamlDocument) -> None:
    """Try combinations of extreme values, as separately valid values may be invalid together."""
    all_corners = space.grid(lambda parameter: parameter.extremes)
    corners = list(itertools.islice(all_corners, _MAX_CORNERS + 1))
    if len(corners) > _MAX_CORNERS:
        # Corners are chosen at random: the first ones in order would share the values of the first
        # parameters.
        chance = random.Random(0)

        def draw(_: str, parameter: ParameterSpec) -> Any:
            return chance.choice(parameter.extremes)

        corners = [space.walk(draw) for _ in range(_MAX_CORNERS)]
    for point in corners:
        _try_point(
            program, space, point, f"the combination {_show(point)}", ("parameters",), document
        )


def _try_point(
    program: SearchableProgram,
    space: Space,
    point: Parameters,
    what: str,
    path: KeyPath,
    document: YamlDocument,
) -> None:
    try:
        program.configure(space.resolve(point, program))
    except ConfigError as error:
        # An error in one key is reported at its line, an error in a combination for the whole
        # point.
        for key in space.parameters:
            if error.key == key or error.key.startswith(f"{key}."):
                raise document.error(error.what, (*path, key), error.hint, error.code) from None
        raise document.error(
            f"{what} is invalid: {error.what}",
            path,
            error.hint,
            error.code or "invalid-combination",
        ) from None


def _check_search(spec: SweepSpec, space: Space, document: YamlDocument) -> None:
    search = spec.search
    where = document.where(("search", "sampler"))
    if not space.parameters and (search.configurations or not spec.baselines):
        raise document.error(
            "nothing to search: no parameters",
            ("parameters",),
            "add a parameter",
            code="nothing-to-search",
        )
    if not spec.baselines and search.configurations == 0:
        raise document.error(
            "nothing to run: no baselines and no configurations",
            ("search", "configurations"),
            "raise search.configurations",
            code="nothing-to-run",
        )
    if search.sampler == "grid":
        for key, parameter in space.parameters.items():
            if parameter.options is None:
                raise document.error(
                    f"a grid needs lists of values, but {key} is {parameter.kind}",
                    ("parameters", key),
                    f"write {key}: {{choice: [...]}} or {{int: [low, high, step]}}",
                    code="grid-over-range",
                )
        if space.grid_size(MAX_GRID + 1) > MAX_GRID:
            raise ConfigError(
                f"the grid has more than {MAX_GRID} points",
                where,
                "use sampler: random",
                key="search.sampler",
                code="grid-too-large",
            )


def _check_arms(spec: SweepSpec, document: YamlDocument) -> None:
    key = spec.search.tune_within
    if key is None:
        return
    choices = [name for name, parameter in spec.parameters.items() if _can_be_arms(parameter)]
    if key not in choices:
        hint = "add a parameter that has choices, such as loss: {choice: [grpo, dapo]}"
        if choices:
            hint = nearest(key, choices)
        raise document.error(
            f"tune_within is {key}, which is not an unconditional choice with several values",
            ("search", "tune_within"),
            hint,
            code="invalid-arms",
        )
    if spec.search.configurations == 0:
        raise document.error(
            "tune_within needs configurations, but search.configurations is 0",
            ("search", "configurations"),
            "raise search.configurations, or remove tune_within",
            code="no-configurations",
        )
    if spec.scheduler != SchedulerSpec():
        what = (
            "early stopping leaves tune_within too few complete trials to estimate tuning variance"
        )
        raise document.error(what, ("scheduler",), "write scheduler: none", "arms-stopped-early")
    counts = {name: len(arm.baselines) for name, arm in arms(spec).items()}
    if len(set(counts.values())) > 1:
        budgets = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise document.error(
            f"arms have different numbers of baselines, so budgets differ ({budgets})",
            ("baselines",),
            f"list the same number of baselines for every value of {key}, or none",
            code="unequal-arms",
        )


def _can_be_arms(parameter: ParameterSpec) -> bool:
    """Return whether a parameter is an unconditional choice with several values."""
    has_several_values = len(parameter.options or ()) > 1
    return parameter.kind == "choice" and not parameter.when and has_several_values


def _check_limits(spec: SweepSpec, document: YamlDocument) -> None:
    if spec.limits.gpu_hours is not None and not spec.resources.gpus_per_trial:
        raise document.error(
            "limits.gpu_hours has no effect, because trials use no GPU",
            ("limits", "gpu_hours"),
            "remove it",
            code="limit-without-gpus",
        )


def _check_scheduler(spec: SweepSpec, document: YamlDocument) -> None:
    asha = spec.scheduler.asha
    evaluations = spec.evaluations or math.inf
    if asha is not None and asha.grace_period > evaluations:
        raise document.error(
            f"grace_period is {asha.grace_period}, but a trial has only {evaluations} evaluations",
            ("scheduler", "asha", "grace_period"),
            f"write at most {evaluations}",
            code="grace-period-too-long",
        )


def _show(values: Overrides) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _show_conditions(when: Overrides) -> str:
    """Return conditions as text: ``loss is "cispo" or "sapo", and lopti is true``."""
    parts = []
    for parent, condition in when.items():
        values = [json.dumps(value, default=str) for value in allowed_values(condition)]
        parts.append(f"{parent} is {' or '.join(values)}")
    return ", and ".join(parts)


def _fulfil(when: Overrides) -> str:
    """Return values that satisfy all conditions, as entries of a baseline: ``lopti: true``."""
    entries = []
    for parent, condition in when.items():
        entries.append(f"{parent}: {json.dumps(allowed_values(condition)[0], default=str)}")
    return ", ".join(entries)
