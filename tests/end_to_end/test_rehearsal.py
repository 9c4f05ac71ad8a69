"""Every preset and published search space, made small, trains on gloo ranks as it would on GPUs."""

import math
from functools import cache
from types import SimpleNamespace

import pytest

from loptune.errors import EngineError
from sweep.space.file import load_space
from sweep.space.points import Space
from tests.paths import SEARCH_SPACES
from tests.refusals import refused
from tests.warm import warm_interpreters
from trainer.cli import main
from trainer.config.extends import preset_specs
from trainer.config.schema import apply_overrides, load_config
from trainer.loop import Trainer
from trainer.rehearsal.rank import compared_step
from trainer.rehearsal.rehearse import Rehearsal, make_model, rehearse, run_ranks, shrunken
from trainer.types import RunContext


def brings(config):
    """What a rehearsal of this configuration tries."""
    parallel = config.parallel
    shared = (parallel.strategy, parallel.zero_stage if parallel.strategy == "deepspeed" else 0)
    return {
        (
            "shared",
            shared,
            parallel.offload,
            config.model.dtype,
            config.model.gradient_checkpointing,
        ),
        ("reference", config.algorithm.kl_coef > 0),
        ("dynamic sampling", config.rollout.dynamic_sampling),
        ("adapter", config.model.lora.r > 0),
    }


def configurations():
    """The fewest presets and published baselines that bring everything which any of them brings,
    chosen greedily.

    `trainer rehearse --all` goes through all presets and variants. Rules alone bring
    nothing here: they differ in what tests/invariants/test_rules.py holds against one rank.
    """
    every = {name: load_config(name) for name in preset_specs()}
    for path in sorted(SEARCH_SPACES.glob("*.yaml")):
        spec = load_space(path)
        if not spec.resources.gpus_per_trial:
            continue  # a sweep for CPUs runs as it is
        space = Space(spec.parameters)
        for number, baseline in enumerate(spec.baselines):
            resolved = space.resolve(space.complete(baseline, spec.program), spec.program)
            every[f"{path.stem} {number}"] = apply_overrides(spec.trainer.base, resolved)
    missing = set().union(*map(brings, every.values()))
    chosen = {}
    while missing:
        name = max(every, key=lambda name: len(brings(every[name]) & missing))
        chosen[name] = every[name]
        missing -= brings(every[name])
    return chosen


CONFIGURATIONS = configurations()
PRESETS_OF_THE_PAPER = ("kk_3b", "kk_7b", "kk_scripts", "math_7b")
OF_THE_PAPER = [spec for spec in preset_specs() if spec.split(":")[0] in PRESETS_OF_THE_PAPER]


@pytest.fixture(scope="module")
def rehearsals(tmp_path_factory):
    with warm_interpreters():
        return {
            rehearsal.name: rehearsal
            for rehearsal in rehearse(CONFIGURATIONS, tmp_path_factory.mktemp("rehearsal"))
        }


@pytest.fixture(scope="module")
def small_models(tmp_path_factory):
    """By preset, a small model of its architecture."""

    @cache
    def model(preset):
        return make_model(load_config(preset), tmp_path_factory.mktemp(preset))

    return lambda spec: model(spec.split(":")[0])


def test_every_way_to_share_a_model_is_among_them():
    ways = {
        (config.parallel.strategy, config.parallel.zero_stage) for config in CONFIGURATIONS.values()
    }
    assert {("deepspeed", 1), ("deepspeed", 3)} <= ways
    assert {way[0] for way in ways} == {"none", "deepspeed"}
    assert any(config.model.lora.r for config in CONFIGURATIONS.values())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_rehearsal_finds_nothing(rehearsals, name):
    rehearsal = rehearsals[name]
    assert rehearsal.failed() == [], rehearsal.row()
    assert len(rehearsal.ranks) == (1 if rehearsal.config.parallel.strategy == "none" else 2)


# On one rank and without a checkpoint: the variants of a preset differ only in the update.
@pytest.mark.slow
@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_every_variant_of_the_paper_trains_a_step(name, small_models, tmp_path):
    config = apply_overrides(
        shrunken(load_config(name), small_models(name), "transformers"),
        {"parallel.strategy": "none", "model.gradient_checkpointing": False},
    )
    trainer = Trainer(config, RunContext.of(tmp_path / "run"))
    try:
        metrics = trainer.training_step()
    finally:
        trainer.close()
    isolates = config.algorithm.lopti_eta > 0
    assert isolates == ("lopti" in name)
    assert metrics["optim/updates"] == (4 if isolates else 2)  # of 16 completions, 8 at a time
    assert ("policy/low_token_fraction" in metrics) == isolates
    assert metrics["optim/grad_norm"] > 0 and math.isfinite(metrics["policy/loss"])


def test_a_compared_step_finds_no_prefix_in_the_engines_cache():
    calls = []
    trainer = SimpleNamespace(
        engine=SimpleNamespace(sync_weights=lambda model: calls.append(model)),
        models=SimpleNamespace(causal_lm="weights"),
        training_step=lambda: {
            "policy/loss": len(calls),
            "optim/grad_norm": 0,
            "rollout/reward": 0,
        },
    )
    assert compared_step(trainer) == {"policy/loss": 1, "optim/grad_norm": 0}
    assert calls == ["weights"]


@pytest.mark.slow
def test_what_ends_a_rank_of_a_rehearsal_is_shown(tmp_path, monkeypatch, capsys):
    (tmp_path / "a_bad_rank.py").write_text(
        "import os\nassert os.environ['RANK'] == '0', 'no such layer'\n"
    )
    monkeypatch.setattr("trainer.rehearsal.rehearse.RANK_MODULE", "a_bad_rank")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with refused("rank-failed", EngineError):
        run_ranks(tmp_path, 2, "kk_3b", on_gpus=False)
    assert "AssertionError: no such layer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reference", 1.8e-6),  # rotary frequencies rounded to bfloat16
        ("short", float("nan")),
        ("long", 0.051),
        ("ratio - 1", 1e-7),
        ("resumed", 1e-7),
    ],
)
def test_what_a_rehearsal_would_find(name, value):
    config = apply_overrides(load_config("kk_3b"), {"parallel.device": "cpu"})
    good = {"reference": 0.0, "short": 0.03, "long": 0.04, "ratio - 1": 0.0, "resumed": 0.0}
    assert Rehearsal("kk_3b", config, [good, good]).failed() == []
    rehearsal = Rehearsal("kk_3b", config, [good, {**good, name: value}])
    assert rehearsal.failed() == [name] and rehearsal.row()[name].endswith("FAILED")


@pytest.mark.parametrize(
    ("words", "code"), [([], "no-preset"), (["kk_3b", "--all"], "all-and-one")]
)
def test_a_rehearsal_wants_one_preset_or_all(words, code, capsys):
    assert main(["rehearse", *words]) == 2
    assert f"[{code}]" in capsys.readouterr().err
