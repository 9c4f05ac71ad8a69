from typing import Any

import pytest
from pydantic import ValidationError

from sweep.space.parameters import ParameterSpec, same_value


def parameter(**written: Any) -> ParameterSpec:
    return ParameterSpec.model_validate(written)


@pytest.mark.parametrize(
    ("written", "options", "extremes"),
    [
        ({"choice": ["grpo", 1, None]}, ["grpo", 1, None], ["grpo", 1, None]),
        ({"value": 1e-6}, [1e-6], [1e-6]),
        ({"int": [4, 16, 4]}, [4, 8, 12, 16], [4, 16]),
        ({"int": [1, 3]}, [1, 2, 3], [1, 3]),
        ({"uniform": [0.0, 0.5]}, None, [0.0, 0.5]),
        ({"loguniform": [1e-6, 1e-3]}, None, [1e-6, 1e-3]),
        ({"by": {"rule": {"A": 1, "B": 1e-6}}}, [1, 1e-6], [1, 1e-6]),
    ],
)
def test_values_that_a_parameter_takes(
    written: dict[str, Any], options: Any, extremes: Any
) -> None:
    spec = parameter(**written)
    assert spec.kind == next(iter(written))
    assert spec.options == options
    assert spec.extremes == extremes


def test_what_lies_in_a_range() -> None:
    assert parameter(choice=[False, True]).contains(True) and not parameter(
        choice=[False, True]
    ).contains(1)
    assert parameter(uniform=[0.0, 0.5]).contains(0.5) and not parameter(
        uniform=[0.0, 0.5]
    ).contains(0.51)
    assert not parameter(int=[4, 16, 4]).contains(6) and not parameter(uniform=[0.0, 0.5]).contains(
        "0.1"
    )


def test_true_is_not_one() -> None:
    assert same_value(1, 1.0) and not same_value(True, 1) and not same_value(0, False)


@pytest.mark.parametrize(
    ("written", "what"),
    [
        ({}, "found none"),
        ({"uniform": [0, 1], "choice": [1]}, "found choice and uniform"),
        ({"uniform": [0.5, 0.5]}, "must be below high"),
        ({"uniform": [0.5, 0.1]}, "low 0.5 must be below high 0.1"),
        ({"loguniform": [0, 1]}, "must be above 0 on a logarithmic scale"),
        ({"int": [2, 8, 0]}, "step 0 must be"),
        ({"choice": [1, 2, 1]}, "lists 1 twice"),
        ({"choice": [1, True]}, "twice"),
        ({"choice": [float("nan")]}, "lists nan"),
        ({"uniform": [0, 1], "else": 0}, "needs a `when`"),
        ({"by": {"rule": {}}}, "names one other parameter"),
        ({"by": {"rule": {"A": 1}, "other": {"A": 1}}}, "names one other parameter"),
    ],
)
def test_ranges_that_make_no_sense_are_refused(written: dict[str, Any], what: str) -> None:
    with pytest.raises(ValidationError, match=what):
        parameter(**written)
