import pytest
from pydantic import Field, ValidationError

from trainer.config.section import Probability, Section


def test_a_default_that_would_be_refused_is_refused():
    class Wrong(Section):
        share: Probability = Field(2.0)

    with pytest.raises(ValidationError, match="less than or equal to 1"):
        Wrong()
