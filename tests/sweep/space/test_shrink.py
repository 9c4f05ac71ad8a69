"""What a shrunken search space keeps and what it replaces."""

from pathlib import Path

import pytest
import yaml

from sweep.cli import main
from sweep.space.file import dump_space, load_space
from sweep.space.shrink import load_shrunk, shrink
from tests.sweep.spaces import SPACE, write_space
from trainer.config.schema import load_config
from trainer.errors import ConfigError

LARGE = {
    "model": {"name_or_path": "org/model-7b", "dtype": "bfloat16"},
    "data": {"task": "math", "train": "train.parquet", "max_prompt_tokens": 1024},
    "reward": {"functions": {"math": 1.0}},
    "algorithm": {"clip_ratio_high": 0.28, "update_epochs": 2, "kl_coef": 0.002},
    "optim": {"lr": 1.0e-6, "update_batch_size": 512},
    "parallel": {"strategy": "deepspeed", "zero_stage": 3},
    "evaluation": {"every_steps": 20, "sets": {"math_500": "math.parquet", "aime": "aime.parquet"}},
    "checkpoint": {"every_steps": 20},
    "epochs": 5,
}


def large_space(folder: Path, **changes: object) -> Path:
    path = write_space(
        folder,
        **{
            "objective": {"metric": "eval/accuracy/aime", "window": 3},
            "search": {"sampler": "tpe", "configurations": 30, "startup": 7, "seed": 5},
            "seeds": [3, 4, 5],
            "scheduler": {"asha": {"grace_period": 6, "reduction_factor": 4, "brackets": 2}},
            "resources": {"gpus_per_trial": 4, "workers_per_trial": 4, "cpus_per_worker": 8},
            "limits": {"max_concurrent": None, "max_failures": 1, "time_budget_s": 5, "gpu_hours": 9},
            **changes,
        },
    )
    folder.joinpath("base.yaml").write_text(yaml.safe_dump(LARGE, sort_keys=False))
    return path


def test_what_is_searched_stays(tmp_path):
    published = load_space(large_space(tmp_path))
    small = shrink(published)
    assert small.name == "kk-shrunk"
    assert small.parameters == published.parameters
    assert small.baselines == published.baselines
    assert small.objective == published.objective
    assert small.search == published.search.model_copy(update={"configurations": 3})
    # Two evaluations, and so at most two before a trial may be stopped.
    asha = published.scheduler.asha
    assert asha is not None
    assert small.scheduler.asha == asha.model_copy(update={"grace_period": 2})
    assert small.base.algorithm == published.base.algorithm
    assert small.base.algorithm.clip_ratio_high == 0.28


def test_what_a_run_costs_goes(tmp_path):
    small = shrink(load_space(large_space(tmp_path)))
    tiny = load_config("tiny_kk")
    for section in ("model", "reward", "parallel"):
        assert getattr(small.base, section) == getattr(tiny, section)
    assert small.base.data.task == "knights_knaves"
    assert [dataset.source for dataset in small.base.data.train] == ["generated"]
    assert list(small.base.evaluation.sets) == ["math_500", "aime"]
    assert {dataset.source for dataset in small.base.evaluation.sets.values()} == {"generated"}
    assert small.base.optim.lr == tiny.optim.lr
    assert (small.base.max_steps, small.base.evaluation.every_steps, small.evaluations) == (2, 1, 2)
    assert small.seeds == [3]
    assert (small.resources.gpus_per_trial, small.resources.workers_per_trial) == (0, 1)
    assert (small.limits.time_budget_s, small.limits.gpu_hours) == (None, None)


def test_no_scheduler_and_few_configurations_stay_as_they_are(tmp_path):
    search = {"sampler": "random", "configurations": 1}
    small = shrink(load_space(large_space(tmp_path, scheduler="none", search=search)))
    assert (small.scheduler.asha, small.scheduler.median) == (None, None)
    assert small.search.configurations == 1


def test_a_whole_grid_is_capped(tmp_path):
    parameters = {"algorithm.ar_alpha": {"quniform": [0.0, 0.5, 0.1]}}
    path = large_space(tmp_path, parameters=parameters, baselines=[], search={"sampler": "grid"})
    small = shrink(load_space(path))
    assert (small.search.sampler, small.search.configurations) == ("grid", 3)


def test_overrides_win_over_shrinking(tmp_path):
    overrides = ["trainer.model.name_or_path=/models/tiny", "search.configurations=9", "trainer.max_steps=4"]
    small, said = load_shrunk(large_space(tmp_path), overrides)
    assert small.base.model.name_or_path == "/models/tiny"
    assert small.search.configurations == 9
    assert small.base.max_steps == 4
    assert said.startswith("shrunk: policy /models/tiny instead of org/model-7b, generated knights_knaves puzzles")


def test_the_published_preset_can_be_overridden_too(tmp_path):
    other = {"extends": "base.yaml", "algorithm": {"clip_ratio_high": 0.5}}
    tmp_path.joinpath("other.yaml").write_text(yaml.safe_dump(other))
    small, _ = load_shrunk(large_space(tmp_path), ["trainer.preset=other.yaml"])
    assert small.base.algorithm.clip_ratio_high == 0.5


def test_a_shrunken_space_reads_back(tmp_path):
    small, _ = load_shrunk(large_space(tmp_path))
    copy = tmp_path / "space.lock.yaml"
    copy.write_text(dump_space(small))
    assert load_space(copy) == small


def test_the_name_stays_a_name(tmp_path):
    assert len(shrink(load_space(large_space(tmp_path, name="n" * 64))).name) == 64
    small, _ = load_shrunk(large_space(tmp_path), ["name=mine"])
    assert small.name == "mine"


@pytest.mark.parametrize(
    ("key", "values"),
    [("model.name_or_path", ["a", "b"]), ("data.max_prompt_tokens", [64, 128]), ("max_steps", [10, 20])],
)
def test_a_space_that_searches_what_is_replaced_is_refused(tmp_path, key, values):
    path = large_space(tmp_path, parameters={key: {"choice": values}}, baselines=[], objective=SPACE["objective"])
    with pytest.raises(ConfigError, match=f"kk searches {key}, which --shrink replaces"):
        load_shrunk(path)


def test_plan_says_what_was_replaced(tmp_path, capsys):
    path = large_space(tmp_path)
    assert main(["plan", str(path), "--shrink", "--runs-dir", str(tmp_path / "runs")]) == 0
    printed = capsys.readouterr().out
    assert "policy tiny instead of org/model-7b" in printed
    assert "instead of task math's data" in printed
    assert "5: 5 configurations x 1 seeds" in printed
    assert main(["plan", str(path), "--shrink", "--json", "--runs-dir", str(tmp_path / "runs")]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["gpus_per_trial"] == 0  # nothing but JSON
