import pytest

from trainer.config.variants import variant_name


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
