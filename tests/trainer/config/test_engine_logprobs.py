import pytest

from trainer.config.schema import load_config
from trainer.errors import ConfigError

LAG, CAP, ENGINE = "rollout.lag=1", "algorithm.engine_correction.cap=2", "optim.old_logprobs=rollout"
TRUNCATIONS = {"top_p": 0.9, "top_k": 5, "min_p": 0.1}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((LAG,), "nothing corrects for: set algorithm.engine_correction.cap to 2, or optim.old_logprobs"),
        ((LAG, CAP, "rollout.dynamic_sampling=true"), "before the rewards are known .* rollout.dynamic_sampling"),
        ((LAG, CAP, "rollout.top_p=0.9"), "rollout.top_p 0.9 renormalises: set rollout.top_p to 1"),
        ((LAG, CAP, "rollout.top_k=20"), "rollout.top_k 20 renormalises: set rollout.top_k to 0"),
        ((CAP, "rollout.lag=2"), "rollout.lag"),
        *(((CAP, f"rollout.{key}={value}"), "renormalise the engine's") for key, value in TRUNCATIONS.items()),
        *(((ENGINE, f"rollout.{key}={value}"), f"rollout.{key} {value:g}") for key, value in TRUNCATIONS.items()),
        # The policy of before the update is asked for more.
        ((ENGINE, CAP, "algorithm.engine_correction.level=sequence"), "level to token"),
        ((ENGINE, "algorithm.token_filter=high_entropy"), "recompute"),
    ],
)
def test_stale_and_engine_log_probabilities_need_a_correction_and_what_it_is_made_of(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config("base", overrides)


@pytest.mark.parametrize("correction", [CAP, ENGINE])
def test_either_correction_will_do(correction):
    assert load_config("base", [LAG, correction]).rollout.lag == 1
