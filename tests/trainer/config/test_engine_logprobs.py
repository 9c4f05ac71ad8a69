import pytest

from loptune.errors import ConfigError
from tests.refusals import refused
from trainer.config.schema import load_config

CAP = "algorithm.rollout_correction.cap=2"
ENGINE = "optim.old_logprobs=rollout"
TRUNCATIONS = {"top_p": 0.9, "top_k": 5, "min_p": 0.1}


@pytest.mark.parametrize(
    ("overrides", "code", "named"),
    [
        *(
            ((CAP, f"rollout.{key}={value}"), "correction-of-truncation", f"{key}")
            for key, value in TRUNCATIONS.items()
        ),
        *(
            (
                (ENGINE, f"rollout.{key}={value}"),
                "engine-logprobs-truncated",
                f"rollout.{key} is {value:g}",
            )
            for key, value in TRUNCATIONS.items()
        ),
        # The policy of before the update is asked for more.
        (
            (ENGINE, CAP, "algorithm.rollout_correction.level=sequence"),
            "correction-not-by-token",
            "algorithm.rollout_correction.level",
        ),
        (
            (ENGINE, "algorithm.token_filter=high_entropy"),
            "engine-without-distributions",
            "high_entropy",
        ),
    ],
)
def test_engine_logprobs_equal_those_of_one_forward_pass(overrides, code, named):
    with refused(code, ConfigError, names=(named,)):
        load_config("base", overrides)
