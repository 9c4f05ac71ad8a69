"""Arms of a search: the values of `search.tune_within`, each with its own search and budget."""

from sweep.space.parameters import ParameterSpec
from sweep.space.points import Parameters, Space
from sweep.space.spec import SweepSpec


def arms(spec: SweepSpec) -> dict[str, SweepSpec]:
    """Return each arm's search space by name, in the order of the parameter's values; the
    first is the baseline.

    An arm runs the baselines with its value and `search.configurations` further configurations. A
    search without arms is a single arm with an empty name.
    """
    key = spec.search.tune_within
    if key is None:
        return {"": spec}
    space = Space(spec.parameters)
    search = spec.search.model_copy(update={"tune_within": None})
    points = [space.complete(baseline, spec.program) for baseline in spec.baselines]
    by_name = {}
    for value in spec.parameters[key].options or []:
        name = str(value)
        changes = {
            "parameters": {**spec.parameters, key: ParameterSpec(value=value)},
            "baselines": [point for point in points if arm_of(spec, point) == name],
            "search": search,
        }
        by_name[name] = spec.model_copy(update=changes)
    return by_name


def arm_key(spec: SweepSpec) -> str | None:
    """Return the parameter whose values are the arms (also for a confirmation of arms), or None."""
    if spec.confirms is not None:
        return spec.confirms.tune_within
    return spec.search.tune_within


def arm_name(spec: SweepSpec, parameters: Parameters) -> str:
    """Return the name of a point's arm (also in a confirmation of arms); empty without arms."""
    key = arm_key(spec)
    return "" if key is None else str(parameters.get(key, ""))


def arm_of(spec: SweepSpec, parameters: Parameters) -> str:
    """Return the name of a point's arm; empty if the space itself searches no arms, as in a
    confirmation of arms.
    """
    key = spec.search.tune_within
    return "" if key is None else str(parameters[key])
