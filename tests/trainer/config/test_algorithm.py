import pytest

from trainer.config.algorithm import AlgorithmConfig


def test_settings_that_make_no_sense_are_refused():
    for settings, reason in [
        ({"token_filter": "drop_low"}, "lopti_eta"),
        ({"loss": "gspo", "loss_aggregation": "token_mean"}, "aggregation token_mean"),
        (
            {"loss": {"name": "sapo", "clip_ratio_high": 0.3}},
            "sapo has no parameter clip_ratio_high",
        ),
        ({"loss": {"threshold": 0.1}}, "clipped has no parameter threshold"),
        ({"loss": "cipso"}, "unknown rule cipso; valid: clipped, gspo, "),
        ({"loss": 3}, "name of a rule"),
        (
            {"advantage": "rloo", "kl_placement": "reward"},
            "does not support a KL penalty in the reward",
        ),
        (
            {"rollout_correction": {"cap": 0.5, "floor": 0.5, "rule": "mask"}},
            "floor must be below cap",
        ),
    ]:
        with pytest.raises(ValueError, match=reason):
            AlgorithmConfig(**settings)


@pytest.mark.parametrize(
    ("advantage", "placement", "in_loss"),
    [
        ("grpo", "auto", True),
        ("reinforce_plus_plus", "auto", False),
        ("reinforce_baseline", "auto", True),
        ("reinforce_plus_plus", "loss", True),
        ("reinforce_baseline", "reward", False),
    ],
)
def test_where_the_kl_penalty_goes(advantage, placement, in_loss):
    assert AlgorithmConfig(advantage=advantage, kl_placement=placement).kl_in_loss is in_loss
