import pytest
from pydantic import ValidationError

from sweep.space.parameters import ParameterSpec, same_value
from tests.tables import table


def parameter(**written):
    return ParameterSpec.model_validate(written)


@pytest.mark.parametrize(("written", "options", "extremes"), table("parameter_values"))
def test_values_that_a_parameter_takes(written, options, extremes):
    spec = parameter(**written)
    assert spec.kind == next(iter(written))
    assert spec.options == options
    assert spec.extremes == extremes


def test_what_lies_in_a_range():
    assert parameter(choice=[False, True]).contains(True) and not parameter(
        choice=[False, True]
    ).contains(1)
    assert parameter(uniform=[0.0, 0.5]).contains(0.5) and not parameter(
        uniform=[0.0, 0.5]
    ).contains(0.51)
    assert not parameter(int=[4, 16, 4]).contains(6) and not parameter(uniform=[0.0, 0.5]).contains(
        "0.1"
    )


def test_true_is_not_one():
    assert same_value(1, 1.0) and not same_value(True, 1) and not same_value(0, False)


@pytest.mark.parametrize(("written", "what"), table("parameter_errors"))
def test_ranges_that_make_no_sense_are_refused(written, what):
    with pytest.raises(ValidationError, match=what):
        parameter(**written)
