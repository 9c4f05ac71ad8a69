import pytest

from loptune.errors import ConfigError, MissingError
from sweep.record.sweep_record import SweepRecord, open_sweep, planned_trials
from sweep.search.event_log import EventLog, read_event_log
from sweep.space.spec import ConfirmsSpec
from sweep.winner.confirm import choose, finalists_of, fresh_space
from tests.refusals import refused
from tests.sweep.ended_sweeps import SCORES, write_sweep

# Configuration n has alpha n / 10: configuration 0 is the plain baseline.
RESULTS = {
    0: {0: 0.5, 3: 0.5},
    1: {0: 0.9, 3: "diverged"},
    2: {0: 0.7, 3: 0.6},
    3: {0: 0.6, 3: 0.6},
    4: {0: 0.8, 3: 0.7},
}


def confirmation(sweep, finalists, seeds, test=None):
    return fresh_space(sweep, finalists_of(sweep, finalists), seeds, test)


def with_sets(sweep, sets):
    spec = sweep.spec
    evaluation = spec.trainer.base.evaluation.model_copy(update={"sets": sets})
    base = spec.trainer.base.model_copy(update={"evaluation": evaluation})
    trainer = spec.trainer.model_copy(update={"config": base})
    return SweepRecord(spec.model_copy(update={"trainer": trainer}), sweep.folder)


def with_parameters(sweep, parameters):
    """The sweep with other parameters of its configurations in the event log."""
    event_log = list(read_event_log(sweep.folder.event_log))
    for event in event_log:
        if event["event"] == "configuration":
            event["parameters"] = event["resolved"] = parameters[event["configuration"]]
    sweep.folder.event_log.unlink()
    EventLog(sweep.folder.event_log).append(*event_log)
    return sweep.reloaded()


def test_the_baseline_and_the_best_complete_ones_are_chosen(tmp_path):
    sweep = write_sweep(tmp_path, "demo", RESULTS)
    assert [finalist.number for finalist in choose(sweep.spec, sweep.configurations, 2)] == [
        0,
        4,
        2,
    ]
    assert [finalist.number for finalist in choose(sweep.spec, sweep.configurations, 9)] == [
        0,
        4,
        2,
        3,
    ]


def test_of_every_arm_the_best_goes_to_fresh_seeds(tmp_path):
    arms = {
        "algorithm.ar_alpha": {"choice": [0.1, 0.2, 0.3, 0.4]},
        "optim.lr": {"uniform": [1e-5, 1e-3]},
    }
    search = {"configurations": 4, "tune_within": "algorithm.ar_alpha"}
    write_sweep(tmp_path, "demo", RESULTS, parameters=arms, baselines=[], search=search)
    alphas = {0: 0.3, 1: 0.4, 2: 0.1, 3: 0.2, 4: 0.1}  # 2 and 4 are of the first arm
    parameters = {
        number: {"algorithm.ar_alpha": alpha, "optim.lr": 1e-4} for number, alpha in alphas.items()
    }
    sweep = with_parameters(open_sweep(tmp_path, "demo"), parameters)
    folder = sweep.folder
    event_log = list(read_event_log(sweep.folder.event_log))
    # 1 lost a seed
    assert [finalist.number for finalist in choose(sweep.spec, sweep.configurations, 9)] == [
        4,
        3,
        0,
    ]
    space = confirmation(sweep, finalists=9, seeds=2)
    assert [point["algorithm.ar_alpha"] for point in space.baselines] == [0.1, 0.2, 0.3]
    assert space.search.tune_within is None and not space.adaptive and planned_trials(space) == 6
    folder.event_log.unlink()
    EventLog(folder.event_log).append(
        *(
            record
            for record in event_log
            if (record["event"], record["configuration"] % 2) != ("result", 0)
        )
    )
    with refused("no-complete-baseline", MissingError, names=("0.1", "demo")):
        finalists_of(sweep.reloaded(), 9)


def test_finalists_run_on_fresh_seeds_and_the_sealed_test(tmp_path):
    sweep = write_sweep(tmp_path, "demo", RESULTS, scheduler={"asha": {"grace_period": 1}})
    space = confirmation(sweep, finalists=1, seeds=2)
    assert space.name == "demo-confirm" and space.seeds == [4, 5]
    assert space.baselines == [{"algorithm.ar_alpha": 0.0}, {"algorithm.ar_alpha": 0.4}]
    assert planned_trials(space) == 4
    assert space.scheduler.asha is None
    dev, test = space.trainer.base.evaluation.sets.values()
    # the first stays the objective
    assert list(space.trainer.base.evaluation.sets) == ["dev", "test"]
    assert test == dev.model_copy(update={"split": "test"})
    assert space.trainer.base.tracking.experiment == "demo"
    assert space.confirms == ConfirmsSpec(sweep="demo", configurations=[0, 4])
    assert [space.reported(number) for number in (0, 1)] == [0, 4]
    assert open_sweep(tmp_path, "demo").spec.seeds == [0, 3]  # the sweep itself is untouched


def test_the_held_out_problems_belong_to_the_objectives_set(tmp_path):
    sweep = write_sweep(tmp_path, "demo", RESULTS, objective={"metric": "eval/reward/hard"})
    sets = sweep.spec.trainer.base.evaluation.sets
    hard = sets["dev"].model_copy(update={"limit": 7})
    space = confirmation(with_sets(sweep, {**sets, "hard": hard}), finalists=1, seeds=1)
    assert space.trainer.base.evaluation.sets["test"] == hard.model_copy(update={"split": "test"})


def test_the_held_out_problems_are_added_to_the_spaces_sets(tmp_path):
    sets = {"people": {"source": "generated", "split": "dev", "people": [2], "size": 8}}
    trainer = {
        "preset": "tiny_kk",
        "overrides": {"evaluation.sets": sets, "tracking.tags": {"team": "ours"}},
    }
    sweep = write_sweep(tmp_path, "demo", RESULTS, trainer=trainer)
    base = confirmation(sweep, finalists=1, seeds=2).trainer.base
    people = base.evaluation.sets["people"]
    test = base.evaluation.sets["test"]
    assert test == people.model_copy(update={"split": "test"})
    assert base.tracking.tags == {"team": "ours"}


def test_a_set_called_test_is_sealed_until_the_finalists_run(tmp_path):
    file = tmp_path / "test.csv"
    file.write_text("question,answer\n")
    sets = {
        "dev": {"split": "dev"},
        "test": {"source": str(file), "columns": {"prompt": "question"}},
    }
    trainer = {"preset": "tiny_kk", "overrides": {"evaluation.sets": sets}}
    sweep = write_sweep(tmp_path, "demo", RESULTS, trainer=trainer)
    assert list(sweep.spec.trainer.base.evaluation.sets) == ["dev"]
    test = confirmation(sweep, 1, 1).trainer.base.evaluation.sets["test"]
    assert (test.source, test.columns) == (str(file), {"prompt": "question"})
    assert file in [path for path, _ in sweep.spec.trainer.files({})]  # a change of it is noticed
    other = confirmation(sweep, 1, 1, test="other.csv").trainer.base.evaluation.sets["test"]
    assert other == test.model_copy(update={"source": "other.csv"})


def test_what_cannot_be_confirmed_is_refused(tmp_path):
    write_sweep(tmp_path, "none", {0: {0: "diverged"}})
    with refused("nothing-complete", MissingError):
        confirmation(open_sweep(tmp_path, "none"), 1, 1)
    sweep = write_sweep(tmp_path, "file", SCORES)
    dev = sweep.spec.trainer.base.evaluation.sets["dev"].model_copy(
        update={"source": "dev.parquet"}
    )
    sweep = with_sets(sweep, {"dev": dev})
    with pytest.raises(ConfigError) as caught:
        confirmation(sweep, 1, 1)
    assert caught.value.where == "dev.parquet" and "--test" in caught.value.hint
    held_out = confirmation(sweep, 1, 1, test="held_out.parquet")
    assert held_out.trainer.base.evaluation.sets["test"].source == "held_out.parquet"
