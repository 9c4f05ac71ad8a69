import math

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
    assert parameter(quniform=[0, 1, 0.1]).contains(0.3)
    assert not parameter(quniform=[0, 1, 0.1]).contains(0.35)
    assert parameter(logint=[1, 10**6]).contains(4096)
    assert not parameter(logint=[1, 10**6]).contains(math.inf)
    assert not parameter(uniform=[0.0, 0.5]).contains(math.nan)
    assert not parameter(logint=[1, 10**6]).contains(4096.5)
    assert not parameter(int=[4, 16, 4]).contains(6) and not parameter(uniform=[0.0, 0.5]).contains(
        "0.1"
    )


def test_true_is_not_one():
    assert same_value(1, 1.0) and not same_value(True, 1) and not same_value(0, False)


def code_and_hint(written):
    with pytest.raises(ValidationError) as caught:
        ParameterSpec.model_validate(written)
    [error] = caught.value.errors()
    return error["type"], error.get("ctx", {}).get("hint", "")


@pytest.mark.parametrize(("written", "code"), table("parameter_errors"))
def test_ranges_that_make_no_sense_are_refused(written, code):
    assert code_and_hint(written)[0] == code


@pytest.mark.parametrize(("written", "ours"), table("other_tools"))
def test_the_words_of_other_tools_are_translated(written, ours):
    code, hint = code_and_hint(written)
    assert code == "other-form" and ours in hint
