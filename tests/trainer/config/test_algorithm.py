import pytest

from trainer.config.algorithm import AlgorithmConfig


def test_settings_that_make_no_sense_are_refused():
    for settings, reason in [
        ({"token_filter": "drop_low"}, "lopti_eta"),
        ({"loss": "gspo", "loss_aggregation": "token_mean"}, "one ratio for a completion"),
        ({"loss": "gmpo", "loss_aggregation": "seq_mean_token_sum"}, r"auto or seq_mean_token_mean \["),
        ({"token_filter": "rsi", "rsi_low": 2.0}, "rsi_low must lie below"),
        ({"loss": "sapo", "chosen_share": 0.1}, "singles out no tokens"),
        ({"loss": "sapo", "clip_ratio_high": 0.3}, "does not clip"),
        ({"loss": "clipped", "dppo_threshold": 0.1}, "no divergence threshold"),
        ({"advantage": "rloo", "kl_placement": "reward"}, "no token rewards"),
        ({"lopti_split": "random"}, "splits Lopti's passes"),
        ({"engine_correction": {"floor": 0.5}}, "a floor needs rule: mask"),
        ({"engine_correction": {"cap": 0.5, "floor": 0.5, "rule": "mask"}}, "floor must be below cap"),
    ]:
        with pytest.raises(ValueError, match=reason):
            AlgorithmConfig(**settings)


@pytest.mark.parametrize(
    ("loss", "clips", "aggregation"),
    [
        ("clipped", (0.2, 0.24), "token_mean"),
        ("gspo", (3e-4, 4e-4), "seq_mean_token_mean"),
        ("gmpo", (0.4, 0.4), "seq_mean_token_mean"),
        ("cispo", (1.0, 4.0), "token_mean"),
        ("clip_cov", (0.2, 0.2), "token_mean"),
        ("lp_reg", (1.0, 9.0), "token_mean"),
        ("sapo", (0.0, 0.0), "seq_mean_token_mean"),
    ],
)
def test_a_loss_brings_the_clips_and_the_aggregation_of_its_authors(loss, clips, aggregation):
    config = AlgorithmConfig(loss=loss)
    assert (config.clip_low, config.clip_high, config.aggregation) == (*clips, aggregation)


def test_what_is_set_goes_before_what_a_loss_brings():
    config = AlgorithmConfig(clip_ratio_low=0.0, clip_ratio_high=0.5, loss_aggregation="constant")
    assert (config.clip_low, config.clip_high, config.aggregation) == (0.0, 0.5, "constant")


@pytest.mark.parametrize(
    ("advantage", "placement", "in_loss"),
    [
        ("grpo", "auto", True),
        ("reinforce_plus_plus", "auto", False),
        ("reinforce_plus_plus_baseline", "auto", True),
        ("reinforce_plus_plus", "loss", True),
        ("reinforce_plus_plus_baseline", "reward", False),
    ],
)
def test_where_the_kl_penalty_goes(advantage, placement, in_loss):
    assert AlgorithmConfig(advantage=advantage, kl_placement=placement).kl_in_loss is in_loss
