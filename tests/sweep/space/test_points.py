"""Conditions, resolution and fingerprints of points of a search space."""

import pytest

from sweep.programs.loptune import LoptuneProgram
from sweep.space.parameters import ParameterSpec
from sweep.space.points import MissingValueError, Space, fingerprint
from tests.sweep.spaces import make_spec, parameters
from trainer.config.schema import TrainConfig, apply_overrides

ETA = "algorithm.lopti_eta"


def space_of(tmp_path, **changes):
    return Space(make_spec(tmp_path, **changes).parameters)


def low(key, parameter):
    return parameter.extremes[0]


def high(key, parameter):
    return parameter.extremes[-1]


def test_parents_come_first_however_the_file_is_ordered(tmp_path):
    reordered = dict(reversed(parameters().items()))
    space = space_of(tmp_path, parameters=reordered)
    assert list(space.parameters).index("lopti") < list(space.parameters).index(ETA)
    assert ETA in space.walk(high)


def test_chain_of_conditions_is_off_as_a_whole(tmp_path):
    space = space_of(
        tmp_path,
        parameters=parameters(
            order={"choice": [1, 2], "when": {"lopti": True}},
            algorithm__lopti_order={"value": "high_first", "when": {"order": [1, 2]}},
        ),
        baselines=[],
    )
    assert "algorithm.lopti_order" not in space.walk(low)
    assert space.walk(high)["algorithm.lopti_order"] == "high_first"


def test_an_inactive_parameter_takes_else_then_the_preset(tmp_path):
    program = LoptuneProgram(config=TrainConfig.model_validate({"algorithm": {"lopti_eta": 0.7}}))
    off = {"algorithm.advantage": "grpo", "algorithm.ar_alpha": 0.25, "lopti": False}
    with_else = space_of(tmp_path)
    assert with_else.resolve(off, program) == {
        "algorithm.advantage": "grpo",
        "algorithm.ar_alpha": 0.25,
        ETA: 0.0,
    }
    without = space_of(
        tmp_path,
        parameters=parameters(
            algorithm__lopti_eta={"uniform": [0.2, 0.9], "when": {"lopti": True}}
        ),
    )
    assert without.resolve(off, program)[ETA] == 0.7
    on = {**off, "lopti": True, ETA: 0.3}
    assert without.resolve(on, program)[ETA] == with_else.resolve(on, program)[ETA] == 0.3


def test_trial_config_is_the_base_with_the_point_and_the_seed(tmp_path):
    spec = make_spec(tmp_path)
    space = Space(spec.parameters)
    point = {"algorithm.advantage": "grpo", "algorithm.ar_alpha": 0.25, "lopti": True, ETA: 0.5}
    config = spec.trainer.configure({**space.resolve(point, spec.program), "seed": 3})
    assert (config.algorithm.ar_alpha, config.algorithm.lopti_eta, config.seed) == (0.25, 0.5, 3)
    assert config.max_steps == 60
    assert spec.trainer.configure({}) == spec.trainer.base


def test_fingerprint_is_of_what_is_trained():
    assert fingerprint({"a": 1, "b": "x"}) == fingerprint({"b": "x", "a": 1.0})
    assert fingerprint({"a": 1}) != fingerprint({"a": True})
    assert fingerprint({"a": 0.1}) != fingerprint({"a": 0.1000001})
    assert fingerprint({"a": [1, {"b": 2}]}) == fingerprint({"a": [1.0, {"b": 2.0}]})
    # Written down: a folder of an older version must still recognize its configurations.
    assert fingerprint({"algorithm.ar_alpha": 0.3}) == "0016e81bb83a3d28"


def test_baseline_is_completed_from_the_preset(tmp_path):
    spec = make_spec(tmp_path)
    space = Space(spec.parameters)
    assert space.complete({"lopti": False}, spec.program) == {
        "algorithm.advantage": "grpo",
        "algorithm.ar_alpha": 0.0,
        "lopti": False,
    }
    with pytest.raises(MissingValueError) as caught:
        space.complete({}, spec.program)
    assert caught.value.key == "lopti"


def test_grid_respects_conditions_and_lists_every_point_once(tmp_path):
    space = space_of(
        tmp_path,
        parameters={
            "algorithm.ar_alpha": {"choice": [0.0, 0.1, 0.2, 0.3]},
            "lopti": {"choice": [False, True]},
            ETA: {"choice": [0.3, 0.5, 0.7], "when": {"lopti": True}},
        },
        baselines=[],
    )
    assert space.is_finite
    points = list(space.grid(lambda parameter: parameter.options or []))
    # 4 values of alpha, each with Lopti off (1) or on (3 thresholds).
    assert len(points) == 4 * (1 + 3) == space.grid_size(100)
    assert {"algorithm.ar_alpha": 0.3, "lopti": False} in points
    assert not space_of(tmp_path).is_finite
    assert {"algorithm.ar_alpha": 0.0, "lopti": True, ETA: 0.7} in points
    assert len({fingerprint(point) for point in points}) == 16
    assert space.grid_size(5) == 5


def test_a_parameter_of_a_rule_applies_when_that_rule_is_drawn():
    loss = "algorithm.loss"
    high = "algorithm.loss.clip_ratio_high"
    space = Space(
        {
            loss: ParameterSpec(choice=["clipped", "cispo", "sapo"]),
            high: ParameterSpec(uniform=(1.0, 5.0), when={loss: "cispo"}),
        }
    )
    program = LoptuneProgram(config=apply_overrides(TrainConfig(), {high: 0.5}))
    assert space.resolve({loss: "cispo", high: 3.0}, program) == {loss: "cispo", high: 3.0}
    assert space.resolve({loss: "clipped"}, program) == {loss: "clipped", high: 0.5}
    assert space.resolve({loss: "sapo"}, program) == {loss: "sapo"}
    assert space.complete({loss: "cispo"}, program) == {loss: "cispo", high: 4.0}
    assert program.configure({high: 3.0, loss: "cispo"}).algorithm.loss.clip_ratio_high == 3.0
