import pytest

from sweep.search.history import Configuration
from sweep.search.study import propose
from sweep.space.points import Space, fingerprint
from tests.sweep.search.instant_sweeps import GRID
from tests.sweep.spaces import make_spec


def spec_in(folder, parameters, sampler="tpe"):
    search = {"sampler": sampler, "configurations": 20, "seed": 1, "startup": 2}
    spec = make_spec(folder, parameters=parameters, baselines=[], search=search, seeds=[0])
    return spec, Space(spec.parameters)


def tried(spec, space, points):
    configurations = []
    for number, point in enumerate(points):
        resolved = space.resolve(point, spec.program)
        configurations.append(Configuration(number, point, resolved, fingerprint(resolved), 0.0))
    return configurations


@pytest.mark.parametrize("sampler", ["tpe", "grid", "random"])
def test_the_last_point_of_a_finite_space_is_found_and_then_nothing(sampler, tmp_path):
    spec, space = spec_in(tmp_path, GRID, sampler)
    points = list(space.grid(lambda parameter: parameter.options or []))
    assert len(points) == 5 * 3  # five alphas; Lopti off or with one of two thresholds
    for left in (0, 7, 14):
        configurations = tried(
            spec, space, [point for place, point in enumerate(points) if place != left]
        )
        assert propose(spec, space, configurations) == points[left]
    assert propose(spec, space, tried(spec, space, points)) is None
