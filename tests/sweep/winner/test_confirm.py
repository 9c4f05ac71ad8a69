from pathlib import Path

import pytest

from sweep.record.folder import existing_sweep, read_spec
from sweep.record.summary import configurations, planned_trials
from sweep.winner.confirm import choose, confirmation_space
from tests.sweep.ended_sweeps import SCORES, write_sweep
from trainer.errors import ConfigError, MissingError

# Configuration n has alpha n / 10: configuration 0 is the plain baseline.
RESULTS: dict[int, dict[int, float | str]] = {
    0: {0: 0.5, 3: 0.5},
    1: {0: 0.9, 3: "diverged"},
    2: {0: 0.7, 3: 0.6},
    3: {0: 0.6, 3: 0.6},
    4: {0: 0.8, 3: 0.7},
}


def test_the_baseline_and_the_best_complete_ones_are_chosen(tmp_path: Path) -> None:
    write_sweep(tmp_path, "demo", RESULTS, seeds=[0, 3])
    folder = existing_sweep(tmp_path, "demo")
    spec = read_spec(folder)
    assert [one.number for one in choose(spec, configurations(folder), 2)] == [0, 4, 2]
    assert [one.number for one in choose(spec, configurations(folder), 9)] == [0, 4, 2, 3]


def test_finalists_run_on_fresh_seeds_and_the_sealed_test(tmp_path: Path) -> None:
    write_sweep(tmp_path, "demo", RESULTS, seeds=[0, 3], scheduler={"asha": {"grace_period": 1}})
    folder = existing_sweep(tmp_path, "demo")
    space = confirmation_space(read_spec(folder), folder, finalists=1, seeds=2)
    assert space.name == "demo-confirm" and space.seeds == [4, 5]
    assert space.baselines == [{"algorithm.ar_alpha": 0.0}, {"algorithm.ar_alpha": 0.4}]
    assert planned_trials(space) == 4
    assert space.scheduler.asha is None
    dev, test = space.base.evaluation.sets.values()
    assert list(space.base.evaluation.sets) == ["dev", "test"]  # the first stays the objective
    assert test == dev.model_copy(update={"split": "test"})
    assert space.base.tracking.experiment == "demo"
    assert space.base.tracking.tags["loptune.confirms"] == "demo"
    assert space.base.tracking.tags["loptune.phase"] == "confirm"
    assert space.base.tracking.tags["loptune.finalists"] == "0,4"
    assert read_spec(folder).seeds == [0, 3]  # the sweep itself is untouched


def test_the_sealed_problems_are_of_the_set_that_the_objective_is_measured_on(tmp_path: Path) -> None:
    write_sweep(tmp_path, "demo", RESULTS, seeds=[0, 3], objective={"metric": "eval/reward/hard"})
    folder = existing_sweep(tmp_path, "demo")
    spec = read_spec(folder)
    sets = spec.base.evaluation.sets
    hard = sets["dev"].model_copy(update={"limit": 7})
    evaluation = spec.base.evaluation.model_copy(update={"sets": {**sets, "hard": hard}})
    base = spec.base.model_copy(update={"evaluation": evaluation})
    spec = spec.model_copy(update={"trainer": spec.trainer.model_copy(update={"config": base})})
    space = confirmation_space(spec, folder, finalists=1, seeds=1)
    assert space.base.evaluation.sets["test"] == hard.model_copy(update={"split": "test"})


def test_what_cannot_be_confirmed_is_refused(tmp_path: Path) -> None:
    write_sweep(tmp_path, "none", {0: {0: "diverged"}}, seeds=[0])
    folder = existing_sweep(tmp_path, "none")
    with pytest.raises(MissingError, match="no configuration of none is complete"):
        confirmation_space(read_spec(folder), folder, 1, 1)
    write_sweep(tmp_path, "file", SCORES, seeds=[0, 1])
    folder = existing_sweep(tmp_path, "file")
    spec = read_spec(folder)
    dev = spec.base.evaluation.sets["dev"].model_copy(update={"source": "dev.parquet"})
    evaluation = spec.base.evaluation.model_copy(update={"sets": {"dev": dev}})
    base = spec.base.model_copy(update={"evaluation": evaluation})
    spec = spec.model_copy(update={"trainer": spec.trainer.model_copy(update={"config": base})})
    with pytest.raises(ConfigError, match="no test split"):
        confirmation_space(spec, folder, 1, 1)
    sealed = confirmation_space(spec, folder, 1, 1, test="sealed.parquet")
    assert sealed.base.evaluation.sets["test"].source == "sealed.parquet"
