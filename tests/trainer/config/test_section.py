import pytest
from pydantic import Field, ValidationError

from trainer.config.section import Count, NonNegative, Positive, Probability, Section


class Sample(Section):
    count: Count = 1
    size: Positive = 1.0
    weight: NonNegative = 0.0
    share: Probability = 1.0


@pytest.mark.parametrize(
    "values",
    [
        {"count": 0},
        {"size": 0},
        {"weight": -1e-9},
        {"share": 1.001},
        {"share": -0.001},
        {"size": float("inf")},
        {"weight": float("nan")},
        {"other": 1},
    ],
)
def test_what_lies_outside_and_what_is_unknown_is_refused(values):
    with pytest.raises(ValidationError):
        Sample(**values)


def test_a_default_that_would_be_refused_is_refused():
    class Wrong(Section):
        share: Probability = Field(2.0)

    with pytest.raises(ValidationError, match="less than or equal to 1"):
        Wrong()
