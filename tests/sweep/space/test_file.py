"""Reading and writing search spaces."""

import pickle

import pytest

from loptune.errors import ConfigError, MissingError
from sweep.space.file import dump_space, load_space
from tests.refusals import refused
from tests.sweep.spaces import kk_space, make_spec, parameters

ALPHA = "algorithm.ar_alpha"
ETA = "algorithm.lopti_eta"


def test_gp_proposes_unless_conditions_or_stopped_trials(tmp_path):
    search = {"configurations": 3}
    rate = {"optim.lr": {"loguniform": [1e-5, 1e-3]}}
    assert make_spec(tmp_path, search=search, parameters=rate, baselines=[]).search.sampler == "gp"
    assert make_spec(tmp_path, search=search).search.sampler == "tpe"
    within = {"rule": {"choice": ["a", "b"]}, ALPHA: {"uniform": [0.1, 0.5], "when": {"rule": "a"}}}
    arms = {**search, "tune_within": "rule"}
    assert make_spec(tmp_path, search=arms, parameters=within, baselines=[]).search.sampler == "gp"
    stopped = make_spec(tmp_path, search=search, parameters=rate, baselines=[], scheduler="asha")
    assert stopped.search.sampler == "tpe"
    fixed = {**rate, "optim.weight_decay": {"value": 0.1, "when": {"optim.lr": 1e-4}}}
    fixed["optim.lr"] = {"choice": [1e-5, 1e-4]}
    assert make_spec(tmp_path, search=search, parameters=fixed, baselines=[]).search.sampler == "gp"


def test_missing_files(tmp_path):
    with pytest.raises(MissingError):
        load_space(tmp_path / "none.yaml")
    with pytest.raises(MissingError, match=r"other\.yaml"):
        load_space(kk_space(tmp_path, trainer={"preset": "other.yaml"}))


def test_the_locked_space_needs_no_other_file_and_is_the_same(tmp_path):
    sets = {"dev": {"split": "dev"}, "test": {"split": "test"}}
    overrides = {"optim.lr": "1e-4", "evaluation.sets": sets}
    switched = parameters(algorithm__lopti_eta={"by": {"lopti": {True: 0.5}}, "else": 0.0})
    trainer = {"preset": "base.yaml", "overrides": overrides}
    spec = make_spec(tmp_path, trainer=trainer, parameters=switched)
    lock = tmp_path / "elsewhere" / "space.lock.yaml"
    lock.parent.mkdir()
    lock.write_text(dump_space(spec))
    (tmp_path / "base.yaml").unlink()
    again = load_space(lock)
    assert again == spec
    assert again.trainer.base.optim.lr == 1e-4
    assert list(again.trainer.base.evaluation.sets) == ["dev"]
    assert again.trainer.held_out_set.split == "test"
    assert again.parameters["algorithm.lopti_eta"].given({"lopti": True}).value == 0.5
    assert dump_space(again) == dump_space(spec)
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_overrides(tmp_path):
    path = kk_space(tmp_path)
    spec = load_space(
        path,
        [
            "search.configurations=7",
            "seeds=[4]",
            "trainer.optim.lr=1e-4",
            "trainer.overrides.rollout.group_size=4",
            "parameters.algorithm.ar_alpha={uniform: [0.1, 0.2]}",
            "scheduler=asha",
            "objective.window=1",
        ],
    )
    assert spec.search.configurations == 7 and spec.search.startup == 2
    assert spec.seeds == [4]
    assert (
        spec.trainer.base.optim.lr == 1e-4
        and spec.trainer.base.rollout.group_size == 4
        and spec.trainer.base.max_steps == 60
    )
    assert spec.parameters[ALPHA].uniform == [0.1, 0.2]
    assert spec.scheduler.asha is not None
    assert spec.objective.window == 1


def test_override_of_the_trainer_written_as_one_word(tmp_path):
    spec = load_space(kk_space(tmp_path, trainer="base.yaml"), ["trainer.max_steps=20"])
    assert spec.trainer.base.max_steps == 20 and spec.evaluations == 2


@pytest.mark.parametrize(
    ("override", "code", "hint"),
    [
        ("serch.configurations=4", "unknown-key", "search"),
        ("optim.lr=1e-4", "unknown-key", "trainer.optim.lr=1e-4"),
        ("trainer.optim.learning=1", "unknown-key", "optim.lr"),
        ("search.configurations=many", "int-parsing", "search_space.md"),
        ("parameters.algorithm.ar_alpha.whn=0", "unknown-key", "when"),
        ("seeds", "invalid-override", "key=value"),
    ],
)
def test_refused_overrides_blame_the_command_line(override, code, hint, tmp_path):
    with refused(code, ConfigError) as caught:
        load_space(kk_space(tmp_path), [override])
    assert hint in caught.value.hint
    assert "command line" in caught.value.where


def test_the_command_line_changes_ranges_and_conditions(tmp_path):
    path = kk_space(tmp_path, baselines=[])

    def changed(*overrides):
        return load_space(path, overrides).parameters

    assert changed("parameters.algorithm.ar_alpha.choice=[0.1, 0.2]")[ALPHA].options == [0.1, 0.2]
    narrowed = changed("parameters.algorithm.lopti_eta.uniform=[0.3, 0.4]")
    assert narrowed[ETA].uniform == [0.3, 0.4]
    assert narrowed[ETA].when == {"lopti": True}
    assert changed("parameters.algorithm.ar_alpha.when={lopti: true}")[ALPHA].when == {
        "lopti": True
    }
    assert changed("parameters.algorithm.ar_alpha.when.lopti=true")[ALPHA].when == {"lopti": True}
    new = changed("parameters.optim.lr.loguniform=[1e-6, 1e-4]")
    assert new["optim.lr"].loguniform == [1e-6, 1e-4]


def test_numbers_that_yaml_reads_as_text(tmp_path):
    spec = make_spec(
        tmp_path,
        parameters=parameters(
            optim__lr={"choice": ["1e-6", "3e-6"]},
            algorithm__kl_coef={"loguniform": ["1e-4", "1e-2"]},
        ),
        baselines=[{"lopti": False, "optim.lr": "3e-6"}],
    )
    assert spec.parameters["optim.lr"].options == [1e-6, 3e-6]
    assert spec.parameters["algorithm.kl_coef"].loguniform == [1e-4, 1e-2]
    assert spec.baselines[0]["optim.lr"] == 3e-6


def test_evaluations_are_the_longest_trials_or_unknown(tmp_path):
    steps = parameters(max_steps={"choice": [20, 40]})
    assert make_spec(tmp_path, parameters=steps, baselines=[]).evaluations == 4
    # the baselines have the 60 steps of the preset
    assert make_spec(tmp_path, parameters=steps).evaluations == 6
    assert (
        load_space(
            kk_space(tmp_path), ["trainer.max_steps=null", "trainer.data.train=a.parquet"]
        ).evaluations
        is None
    )
    assert load_space(kk_space(tmp_path), ["trainer.max_steps=61"]).evaluations == 7
