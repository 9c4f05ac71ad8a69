"""Every preset and published search space, made small, trains on gloo ranks as it would on GPUs."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from sweep.space.file import load_space
from sweep.space.points import Space
from tests.paths import SEARCH_SPACES
from trainer.commands.rehearsal_rank import _compared_step
from trainer.commands.rehearse import Rehearsal, _run_ranks, rehearse
from trainer.config.extends import preset_specs
from trainer.config.schema import TrainConfig, apply_overrides, load_config
from trainer.errors import EngineError


def brings(config: TrainConfig) -> set[tuple[object, ...]]:
    """What a rehearsal of this configuration tries."""
    parallel = config.parallel
    shared = (parallel.strategy, parallel.zero_stage if parallel.strategy == "deepspeed" else 0)
    return {
        ("shared", shared, parallel.offload, config.model.dtype, config.model.gradient_checkpointing),
        ("reference", config.algorithm.kl_coef > 0),
        ("dynamic sampling", config.rollout.dynamic_sampling),
        ("adapter", config.model.lora.r > 0),
    }


def configurations() -> dict[str, TrainConfig]:
    """The fewest presets and published baselines that bring everything which any of them brings, chosen greedily.

    `trainer rehearse --all` goes through all presets and variants. Rules alone bring nothing here: they differ in
    what tests/invariants/test_rules.py holds against one rank.
    """
    every = {name: load_config(name) for name in preset_specs()}
    for path in sorted(SEARCH_SPACES.glob("*.yaml")):
        spec = load_space(path)
        if not spec.resources.gpus_per_trial:
            continue  # a sweep for CPUs runs as it is
        space = Space(spec.parameters)
        for number, baseline in enumerate(spec.baselines):
            resolved = space.resolve(space.complete(baseline, spec.base), spec.base)
            every[f"{path.stem} {number}"] = apply_overrides(spec.base, resolved)
    missing = set().union(*map(brings, every.values()))
    chosen = {}
    while missing:
        name = max(every, key=lambda name: len(brings(every[name]) & missing))
        chosen[name] = every[name]
        missing -= brings(every[name])
    return chosen


CONFIGURATIONS = configurations()


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, Rehearsal]:
    return {one.name: one for one in rehearse(CONFIGURATIONS, tmp_path_factory.mktemp("rehearsal"))}


def test_every_way_to_share_a_model_is_among_them() -> None:
    ways = {(config.parallel.strategy, config.parallel.zero_stage) for config in CONFIGURATIONS.values()}
    assert {("deepspeed", 2), ("deepspeed", 3)} <= ways
    assert {way[0] for way in ways} == {"none", "deepspeed"}
    assert any(config.model.lora.r for config in CONFIGURATIONS.values())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_rehearsal_finds_nothing(found: dict[str, Rehearsal], name: str) -> None:
    one = found[name]
    print(one.row(), [rank["held_bytes"] for rank in one.ranks])
    assert one.checks() == dict.fromkeys(("reference", "engine", "ratio", "memory", "resume"), True)
    assert len(one.ranks) == (1 if one.config.parallel.strategy == "none" else 2)
    assert all(len(rank["accuracy"]) == 3 for rank in one.ranks)


def test_a_compared_step_finds_no_prefix_in_the_engines_cache() -> None:
    calls = []
    trainer = SimpleNamespace(
        engine=SimpleNamespace(sync_weights=lambda model: calls.append(model)),
        models=SimpleNamespace(causal_lm="weights"),
        training_step=lambda: {"steps": len(calls)},
    )
    assert _compared_step(trainer) == {"steps": 1}
    assert calls == ["weights"]


RAISES = """
import os
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("no such layer")

main()
"""
DIES = """
import os, signal
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "message", "log"),
    [
        (RAISES, "rank 1 of a rehearsal failed: ValueError: no such layer", "stderr.log"),
        (DIES, "a rehearsal failed: rank 1 ended with code -9", "torchrun.log"),
    ],
)
def test_the_rank_that_ends_a_rehearsal_is_named_with_its_log(tmp_path, monkeypatch, module, message, log) -> None:
    (tmp_path / "a_bad_rank.py").write_text(module)
    monkeypatch.setattr("trainer.commands.rehearse.RANK_MODULE", "a_bad_rank")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineError) as failed:
        _run_ranks(tmp_path, 2, ["kk_3b"], on_gpus=False)
    assert failed.value.what == message
    assert Path(failed.value.where).name == log
    assert Path(failed.value.where).is_file()


def test_what_a_rehearsal_would_find() -> None:
    config = apply_overrides(load_config("kk_3b"), {"parallel.device": "cpu"})
    good = {
        "engine": "transformers",
        "stored": "bfloat16",
        "reference": 0.0,
        "engine_short": 0.03,
        "engine_long": 0.04,
        "ratio": 0.0,
        "held_bytes": [0, 1 << 22, 1 << 22],
        "accuracy": [0.0] * 3,
        "resumed_at": 2,
        "resumed": [0.5, 3.0],
        "not_resumed": [0.5, 3.0],
        "seconds": 1.0,
    }
    bad = {
        "reference": {"reference": 1.8e-6},  # rotary frequencies rounded to bfloat16
        "engine": {"engine_long": 0.051},
        "ratio": {"ratio": 1e-7},
        "memory": {"held_bytes": [0, 1 << 22, 1 << 23]},
        "resume": {"resumed": [0.5, 3.0000001]},
    }
    assert all(Rehearsal("kk_3b", config, [good, good]).checks().values())
    for check, changes in bad.items():
        one = Rehearsal("kk_3b", config, [good, {**good, **changes}])
        assert [name for name, right in one.checks().items() if not right] == [check]
        assert "FAILED" in " ".join(one.row().values()) or check == "resume"
