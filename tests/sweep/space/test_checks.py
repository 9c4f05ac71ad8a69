"""Refusing search spaces that could not run."""

import pytest

from loptune.errors import ConfigError
from sweep.space.file import load_space
from tests.refusals import refused
from tests.sweep.spaces import kk_space, make_spec, parameters
from tests.tables import table

ALPHA = "algorithm.ar_alpha"


REFUSED = table("refused_spaces")


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_file_code_and_hint(case, tmp_path):
    written, code, key, hint = REFUSED[case]
    changes = {key: value for key, value in written.items() if key not in ("fixed", "searched")}
    if "fixed" in written:
        changes["trainer"] = {"preset": "base.yaml", "overrides": written["fixed"]}
    if "searched" in written:
        changes["parameters"] = parameters(**written["searched"])
    path = kk_space(tmp_path, **changes)
    with refused(code, ConfigError, key) as caught:
        load_space(path)
    assert hint in caught.value.hint
    assert caught.value.hint
    if case != "missing preset":
        assert str(path) in caught.value.where


def test_error_names_the_line(tmp_path):
    path = kk_space(tmp_path, parameters=parameters(algorithm__ar_alpha={"uniform": [0.0, 1.5]}))
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if ALPHA in text)
    with pytest.raises(ConfigError) as caught:
        load_space(path)
    assert caught.value.where == f"{path}:{line}, key parameters.{ALPHA}"


def test_strategies_may_be_searched(tmp_path):
    strategies = {"parallel.strategy": {"choice": ["ddp", "deepspeed"]}}
    spec = make_spec(
        tmp_path, parameters=strategies, baselines=[], resources={"workers_per_trial": 2}
    )
    assert spec.trainer.base.parallel.strategy == "none"


def test_one_trial_at_a_time_may_use_servers_and_gpu_settings(tmp_path):
    def written(**overrides):
        return {"preset": "base.yaml", "overrides": overrides}

    server = {"rollout.vllm.mode": "server"}
    assert (
        make_spec(
            tmp_path, trainer=written(**server), limits={"max_concurrent": 1}
        ).limits.max_concurrent
        == 1
    )
    unused = written(**server, **{"rollout.engine": "transformers"})
    assert (
        make_spec(tmp_path, trainer=unused, limits={"max_concurrent": 2}).limits.max_concurrent == 2
    )
    on_gpu = make_spec(
        tmp_path, trainer=written(**{"parallel.device": "cuda"}), resources={"gpus_per_trial": 1}
    )
    assert on_gpu.resources.gpus_per_trial == 1


def test_baseline_outside_of_the_range_is_allowed(tmp_path):
    spec = make_spec(
        tmp_path,
        parameters=parameters(algorithm__ar_alpha={"uniform": [0.1, 0.5]}),
        baselines=[{"lopti": False, ALPHA: 0.0}],
    )
    assert spec.baselines[0][ALPHA] == 0.0


def test_values_that_refuse_each_other_are_found_in_a_large_space(tmp_path):
    # 2^11 corners: too many to try each, and the first of them are all fine.
    numbers = [
        "optim.lr",
        "optim.weight_decay",
        "optim.eps",
        "algorithm.kl_coef",
        "rollout.temperature",
    ]
    numbers += [
        "algorithm.loss.clip_ratio_low",
        "algorithm.loss.clip_ratio_high",
        "rollout.top_p",
        "rollout.min_p",
    ]
    spec = {
        "algorithm.token_filter": {"choice": ["none", "drop_low"]},
        "algorithm.lopti_order": {"choice": ["low_first", "high_first"]},
        **{key: {"uniform": [0.1, 0.2]} for key in numbers},
    }
    with refused("filter-without-threshold", ConfigError, "parameters"):
        make_spec(tmp_path, parameters=spec, baselines=[])
