import pytest

from tests.refusals import setting_refused
from trainer.config.algorithm import AlgorithmConfig


def test_settings_that_make_no_sense_are_refused():
    for settings, code, names in [
        ({"token_filter": "drop_low"}, "filter-without-threshold", ["lopti_eta"]),
        ({"filter_interval": [0.5, 0.5]}, "filter-interval-empty", ["filter_interval"]),
        (
            {"loss": "gspo", "loss_aggregation": "token_mean"},
            "aggregation-unsupported",
            ["token_mean"],
        ),
        (
            {"loss": {"name": "sapo", "clip_ratio_high": 0.3}},
            "unknown-parameter",
            ["sapo", "clip_ratio_high"],
        ),
        ({"loss": {"threshold": 0.1}}, "unknown-parameter", ["clipped", "threshold"]),
        ({"loss": "cipso"}, "literal_error", ["cipso", "clipped, gspo, "]),
        ({"loss": 3}, "not-a-rule", []),
        (
            {"advantage": "rloo", "kl_placement": "reward"},
            "kl-placement-unsupported",
            ["rloo", "reward"],
        ),
        (
            {"rollout_correction": {"cap": 0.5, "floor": 0.5, "rule": "mask"}},
            "floor-not-below-cap",
            [],
        ),
    ]:
        with setting_refused(code, names):
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
