from functools import partial

import pytest

from trainer.config.schema import TrainConfig, apply_overrides, value_of
from trainer.config.variants import configured_name, variant_name


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (("grpo", 0.0, 0.0), "grpo"),
        (("grpo", 0.3, 0.0), "grpo + AR"),
        (("reinforce_plus_plus", 0.0, 0.5), "reinforce_plus_plus + Lopti"),
        (("grpo", 0.1, 0.5), "grpo + AR + Lopti"),
        (("grpo", 0.0, 0.5, "drop_high"), "grpo + drop high"),
        (("grpo", 0.0, 0.5, "high_entropy"), "grpo + high entropy + Lopti"),
        (("grpo", 0.0, 0.0, "high_entropy"), "grpo + high entropy"),
        (("grpo", 0.0, 0.5, "none", "random"), "grpo + random split"),
        (("grpo", 0.0, 0.5, "none", "probability", "high_first"), "grpo + Lopti high first"),
        # Without a threshold neither the split nor its order means anything.
        (("grpo", 0.0, 0.0, "none", "random", "high_first"), "grpo"),
    ],
)
def test_a_rule_is_named_by_what_is_on(settings, name):
    assert variant_name(*settings) == name


def test_a_configuration_is_called_by_its_rule_and_what_else_was_searched() -> None:
    plain = TrainConfig()
    assert configured_name(partial(value_of, plain), {}) == "grpo"
    searched = {
        "algorithm.ar_alpha": 0.3,
        "algorithm.lopti_eta": 0.5,
        "optim.lr": 1e-5,
        "rollout.temperature": 0.7,
    }
    config = apply_overrides(plain, searched, "test")
    assert (
        configured_name(partial(value_of, config), {**searched, "lopti": True})
        == "grpo+AR 0.3+Lopti 0.5 lr=1e-05 temperature=0.7"
    )
