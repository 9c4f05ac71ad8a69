import pytest

from trainer.config.schema import load_config
from trainer.errors import ConfigError

CAP = "algorithm.rollout_correction.cap=2"
ENGINE = "optim.old_logprobs=rollout"
TRUNCATIONS = {"top_p": 0.9, "top_k": 5, "min_p": 0.1}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        *(
            ((CAP, f"rollout.{key}={value}"), "renormalize the engine's")
            for key, value in TRUNCATIONS.items()
        ),
        *(
            ((ENGINE, f"rollout.{key}={value}"), f"rollout.{key} is {value:g}")
            for key, value in TRUNCATIONS.items()
        ),
        # The policy of before the update is asked for more.
        ((ENGINE, CAP, "algorithm.rollout_correction.level=sequence"), "level to token"),
        ((ENGINE, "algorithm.token_filter=high_entropy"), "recompute"),
    ],
)
def test_engine_logprobs_equal_those_of_one_forward_pass(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config("base", overrides)
