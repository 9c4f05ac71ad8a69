import pytest

from trainer.config.schema import load_config
from trainer.errors import ConfigError

STALE = ("rollout.lag=1", "algorithm.importance_sampling_cap=2")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (STALE[:1], "nothing corrects for: set algorithm.importance_sampling_cap to 2, or optim.old_logprobs"),
        ((*STALE, "rollout.dynamic_sampling=true"), "before the rewards are known .* rollout.dynamic_sampling"),
        ((*STALE, "rollout.top_p=0.9"), r"rollout.top_p 0.9 renormalises: set rollout.top_p to 1"),
        ((*STALE, "rollout.top_k=20"), r"rollout.top_k 20 renormalises: set rollout.top_k to 0"),
        ((*STALE, "rollout.lag=2"), "rollout.lag"),
    ],
)
def test_stale_completions_need_a_correction_and_what_it_is_made_of(overrides, message):
    with pytest.raises(ConfigError, match=message):
        load_config("base", overrides)


@pytest.mark.parametrize("correction", [STALE[1], "optim.old_logprobs=rollout"])
def test_either_correction_will_do(correction):
    assert load_config("base", [STALE[0], correction]).rollout.lag == 1
