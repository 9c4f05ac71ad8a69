"""Repeating with full weights what was found with adapters: the section `full` of a space."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweep.space.file import dump_space, load_space
from sweep.space.full import full_point, full_space
from sweep.space.spec import SweepSpec
from tests.paths import ROOT
from tests.sweep.spaces import make_spec, parameters
from trainer.config.schema import apply_overrides, load_config
from trainer.errors import ConfigError


def two_stages(folder: Path, full: dict[str, Any], **changes: Any) -> SweepSpec:
    trainer = {"preset": "base.yaml", "overrides": {"model.lora.r": 8, "optim.lr": 1e-4}}
    return make_spec(folder, **{"trainer": trainer, "full": full, **changes})


def test_full_weights_are_trained_as_the_section_says(tmp_path: Path) -> None:
    spec = two_stages(tmp_path, {"overrides": {"optim.lr": 1e-5}, "resources": {"cpus_per_worker": 2}})
    full = full_space(spec)
    assert full.base == apply_overrides(spec.base, {"model.lora.r": 0, "optim.lr": 1e-5})
    assert full.resources.cpus_per_worker == 2
    assert (full.parameters, full.baselines, full.full) == (spec.parameters, spec.baselines, None)
    assert full_space(two_stages(tmp_path, {})).resources == spec.resources


def test_what_full_weights_fix_is_not_searched_any_more(tmp_path: Path) -> None:
    searched = parameters(model__lora__r={"choice": [8, 32]}, optim__lr={"loguniform": [1e-5, 1e-3]})
    spec = two_stages(
        tmp_path,
        {"overrides": {"optim.lr": 1e-5}},
        trainer={"preset": "base.yaml"},  # a searched rank alone makes adapters
        parameters=searched,
        baselines=[],
    )
    assert list(full_space(spec).parameters) == list(parameters())
    point = {"model.lora.r": 32, "optim.lr": 1e-3, "algorithm.ar_alpha": 0.2, "lopti": False}
    assert full_point(spec, point) == {"algorithm.ar_alpha": 0.2, "lopti": False}


def test_the_section_is_kept_with_the_sweep_and_can_be_overridden(tmp_path: Path) -> None:
    two_stages(tmp_path, {"overrides": {"optim.lr": 1e-5}})
    overrides = ["full.overrides.optim.lr=2e-5", "full.overrides.optim.warmup_steps=3"]
    spec = load_space(tmp_path / "space.yaml", [*overrides, "full.resources.cpus_per_worker=2"])
    assert spec.full is not None and spec.full.resources is not None
    assert spec.full.overrides == {"optim.lr": 2e-5, "optim.warmup_steps": 3}
    assert spec.full.resources.cpus_per_worker == 2
    copy = tmp_path / "space.lock.yaml"
    copy.write_text(dump_space(spec))
    assert load_space(copy) == spec


# The section, other keys of the space, what the message says, what the hint says.
REFUSED = yaml.safe_load("""
- [{overides: {}}, {}, unknown key full.overides, 'did you mean overrides?']
- [{overrides: {optim.rl: 1}}, {}, unknown key optim.rl, 'did you mean optim.lr?']
- [{overrides: {optim.lr: fast}}, {}, optim.lr, '']
- [{overrides: {model.lora.r: 4}}, {}, 'sets model.lora.r: full weights have no adapter', remove it]
- [{overrides: {model.lora: {}}}, {}, 'sets model.lora: full weights have no adapter', remove it]
- [{overrides: {seed: 1}}, {}, 'sets seed: their seeds are fresh', remove it]
- [{}, {trainer: {preset: base.yaml}}, these train full weights, add trainer.model.lora.r=16]
- [{resources: {gpus_per_trial: 4, workers_per_trial: 4}}, {},
   "with full weights: 4 workers a trial, but the trainer's parallel.strategy is none",
   add full.overrides.parallel.strategy=ddp]
- [{overrides: {parallel.device: cuda}}, {}, "with full weights: the trainer's configuration is for GPUs",
   add full.resources.gpus_per_trial=N]
- [{overrides: {algorithm.advantage: maxrl}}, {}, "maxrl divides by a group's mean reward", '']
- [{}, {trainer: base.yaml, parameters: {model.lora.r: {choice: [4, 8]}}, baselines: []},
   nothing that is searched is left with full weights, search a key of neither]
- [{}, {trainer: base.yaml, baselines: [], parameters: {model.lora.r: {choice: [4, 8]},
   algorithm.ar_alpha: {uniform: [0, 1], when: {model.lora.r: 4}}}},
   'with full weights: the condition of algorithm.ar_alpha names model.lora.r', '']
""")


@pytest.mark.parametrize(("full", "changes", "what", "hint"), REFUSED)
def test_a_second_stage_that_could_not_run_is_refused(tmp_path, full, changes, what, hint):
    with pytest.raises(ConfigError, match=re.escape(what)) as refused:
        two_stages(tmp_path, full, **changes)
    assert hint in refused.value.hint
    assert re.search(r"space.yaml:\d+, key (full|optim.rl)", refused.value.where)


def test_the_published_space_ends_in_the_full_preset() -> None:
    spec = load_space(ROOT / "search_spaces" / "knights_knaves_3b_lora.yaml")
    full, preset = full_space(spec), load_config("kk_3b")
    assert full.base == apply_overrides(preset, {"model.lora.alpha": spec.base.model.lora.alpha})
    assert (full.resources.gpus_per_trial, full.resources.workers_per_trial) == (4, 4)
