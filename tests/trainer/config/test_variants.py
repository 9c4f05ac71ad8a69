import pytest

from trainer.commands.start import rule_of
from trainer.config.schema import TrainConfig

RANDOM = {"lopti_split": "random"}
HIGH_FIRST = {"lopti_order": "high_first"}


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "grpo"),
        ({"ar_alpha": 0.3}, "grpo + AR"),
        ({"advantage": "reinforce_plus_plus", "lopti_eta": 0.5}, "reinforce_plus_plus + Lopti"),
        ({"ar_alpha": 0.1, "lopti_eta": 0.5}, "grpo + AR + Lopti"),
        ({"lopti_eta": 0.5, "token_filter": "drop_high"}, "grpo + drop high"),
        ({"lopti_eta": 0.5, "token_filter": "high_entropy"}, "grpo + high entropy + Lopti"),
        ({"token_filter": "high_entropy"}, "grpo + high entropy"),
        ({"lopti_eta": 0.5, **RANDOM}, "grpo + random split"),
        ({"lopti_eta": 0.5, **HIGH_FIRST}, "grpo + Lopti high first"),
        # Without a threshold neither the split nor its order means anything.
        ({**RANDOM, **HIGH_FIRST}, "grpo"),
    ],
)
def test_a_rule_is_named_by_what_is_on(settings, name):
    assert rule_of(TrainConfig.model_validate({"algorithm": settings})) == name
