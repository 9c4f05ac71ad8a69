"""Arms of a search: the values of `search.tune_within`, each with a search and a budget of
its own.
"""

from sweep.space.parameters import ParameterSpec
from sweep.space.points import Parameters, Space
from sweep.space.spec import SweepSpec

# fresh ones of each finalist that `sweep confirm --rounds` runs at most, unless it names a number
MAX_SEEDS = 30
ARM_SEEDS = 8  # fresh ones of the best of every arm: few seeds tell nothing of many arms


def arms(spec: SweepSpec) -> dict[str, SweepSpec]:
    """Name -> the search of an arm, in the order of the choice; the first is what the others are
    held against.

    An arm has the parameters that are active with its value, the baselines with its value, and
    `search.configurations` besides them. A search without arms is one arm without a name.
    """
    key = spec.search.tune_within
    if key is None:
        return {"": spec}
    space = Space(spec.parameters)
    search = spec.search.model_copy(update={"tune_within": None})
    points = [space.complete(baseline, spec.program) for baseline in spec.baselines]
    return {
        str(value): spec.model_copy(
            update={
                "parameters": {**spec.parameters, key: ParameterSpec(value=value)},
                "baselines": [point for point in points if arm_of(spec, point) == str(value)],
                "search": search,
            }
        )
        for value in spec.parameters[key].options or []
    }


def arm_of(spec: SweepSpec, parameters: Parameters) -> str:
    """Return the name of the arm to which a point belongs."""
    key = spec.search.tune_within
    return "" if key is None else str(parameters[key])
