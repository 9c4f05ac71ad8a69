import pytest

from tests.tables import table
from trainer.commands.start import rule_of
from trainer.config.schema import TrainConfig


@pytest.mark.parametrize(("settings", "name"), table("rule_names"))
def test_a_rule_is_named_by_what_is_on(settings, name):
    assert rule_of(TrainConfig.model_validate({"algorithm": settings})) == name
