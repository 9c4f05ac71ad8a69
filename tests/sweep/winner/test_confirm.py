import json
from pathlib import Path

import pytest

from sweep.cli import main
from sweep.record.folder import existing_sweep, read_spec
from sweep.record.summary import configurations, planned_trials
from sweep.winner.confirm import choose, confirmation_space
from tests.sweep.ended_sweeps import SCORES, write_sweep
from tests.sweep.harness import SHORT, write_space
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


def test_finalists_with_full_weights(tmp_path: Path) -> None:
    lora = {"preset": "tiny_kk", "overrides": {**SHORT, "model.lora.r": 4, "optim.lr": 1e-3}}
    full = {"overrides": {"optim.lr": 1e-4}, "resources": {"cpus_per_worker": 2}}
    write_sweep(tmp_path, "demo", RESULTS, seeds=[0, 3], trainer=lora, full=full)
    folder = existing_sweep(tmp_path, "demo")
    spec = read_spec(folder)
    space = confirmation_space(spec, folder, finalists=1, seeds=2, full=True)
    assert space.name == "demo-full" and space.seeds == [4, 5]
    assert space.baselines == [{"algorithm.ar_alpha": 0.0}, {"algorithm.ar_alpha": 0.4}]
    assert (space.base.model.lora.r, space.base.optim.lr) == (0, 1e-4)
    assert space.resources.cpus_per_worker == 2
    assert space.full is None
    assert list(space.base.evaluation.sets) == ["dev", "test"]
    tags = space.base.tracking.tags
    assert (tags["loptune.confirms"], tags["loptune.weights"]) == ("demo", "full")
    again = confirmation_space(spec, folder, finalists=1, seeds=2)  # without it, adapters again
    assert (again.name, again.base.model.lora.r) == ("demo-confirm", 4)
    assert "loptune.weights" not in again.base.tracking.tags and again.full is None


def test_finalists_that_differ_in_their_adapters_alone_are_one_with_full_weights(tmp_path: Path) -> None:
    lora = {"preset": "tiny_kk", "overrides": SHORT}
    searched = {"algorithm.ar_alpha": {"uniform": [0.0, 0.5]}, "model.lora.r": {"choice": [4, 8]}}
    write_sweep(tmp_path, "demo", RESULTS, seeds=[0, 3], trainer=lora, parameters=searched, baselines=[], full={})
    folder = existing_sweep(tmp_path, "demo")
    spec, found = read_spec(folder), configurations(folder)
    both = {one.number: one.parameters for one in found} | {4: {"algorithm.ar_alpha": 0.2}}
    ledger = [json.loads(line) for line in folder.ledger.read_text().splitlines()]
    for event in ledger:
        if event["event"] == "configuration":  # 4 is 2 with another rank, and better
            rank = 8 if event["configuration"] == 4 else 4
            event["parameters"] = {**both[event["configuration"]], "model.lora.r": rank}
    folder.ledger.write_text("".join(json.dumps(event) + "\n" for event in ledger))
    space = confirmation_space(spec, folder, finalists=2, seeds=1, full=True)
    assert space.base.tracking.tags["loptune.finalists"] == "0,4,3"
    assert space.baselines == [{"algorithm.ar_alpha": alpha} for alpha in (0.0, 0.2, 0.3)]


def test_full_weights_that_nothing_describes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    confirm = ["confirm", "demo", "--full", "--runs-dir", str(tmp_path)]
    write_sweep(tmp_path, "demo", RESULTS, seeds=[0, 3])
    assert main(confirm) == 2
    space = existing_sweep(tmp_path, "demo").space
    what, where, hint = capsys.readouterr().err.splitlines()
    assert what == "error: the trials of demo train full weights already"
    assert where == f"where: {space}" and "confirm demo" in hint
    write_space(space, name="demo", trainer={"preset": "tiny_kk", "overrides": {**SHORT, "model.lora.r": 4}})
    assert main(confirm) == 2
    what, where, hint = capsys.readouterr().err.splitlines()
    assert what == "error: the space of demo does not say how full weights are trained: it has no section `full`"
    assert "add one at the end, such as full: {overrides: {optim.lr: 1.0e-6}, resources: {" in hint


def test_the_sealed_problems_are_added_to_sets_that_the_search_space_names(tmp_path: Path) -> None:
    sets = {"people": {"source": "generated", "split": "dev", "people": [2], "size": 8}}
    trainer = {"preset": "tiny_kk", "overrides": {"evaluation.sets": sets, "tracking.tags": {"team": "ours"}}}
    write_sweep(tmp_path, "demo", RESULTS, seeds=[0, 3], trainer=trainer)
    folder = existing_sweep(tmp_path, "demo")
    base = confirmation_space(read_spec(folder), folder, finalists=1, seeds=2).base
    own, test = base.evaluation.sets["people"], base.evaluation.sets["test"]
    assert test == own.model_copy(update={"split": "test"})
    assert base.tracking.tags["team"] == "ours"
    assert base.tracking.tags["loptune.confirms"] == "demo"


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
