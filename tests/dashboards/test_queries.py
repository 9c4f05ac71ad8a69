import json
import math
from pathlib import Path

import pandas as pd
import pytest

from dashboards.queries import _setting, read_scores, read_sweep
from dashboards.statistics.seed_noise import Noise
from dashboards.statistics.sequential import Design, Standing
from dashboards.sweep import Objective, unit_of
from sweep.space.file import find_space, load_space
from sweep.space.spec import ConfirmsSpec
from sweep.tracking.outcomes import TrialOutcome
from sweep.tracking.parent_run import open_parent_run
from sweep.winner.rounds import Decision, decision_as_json
from tests.trainer.tracking.store import config_for, context_for, sqlite_store
from trainer.errors import MissingError
from trainer.tracking.tracker import Tracker


def test_a_sweep_is_read_back_whole(demo_uri: str) -> None:
    sweep = read_sweep("demo", demo_uri)
    assert sweep.status == "FINISHED"
    assert sweep.objective == Objective("eval/accuracy", "max", 3)
    assert sweep.searched == ("algorithm.advantage", "algorithm.ar_alpha", "algorithm.lopti_eta")
    assert len(sweep.trials) == 12
    failed = sweep.trials[sweep.trials.state == "FAIL"]
    assert list(failed.trial) == ["005-s1"] and math.isnan(failed.score.iloc[0])
    assert failed.reason.iloc[0].startswith("diverged at step 25")
    row = sweep.trials[sweep.trials.trial == "004-s1"].iloc[0]
    assert (row.configuration, row.seed, row.algorithm) == ("4", "1", "reinforce_plus_plus")
    assert (row.alpha, row.eta, row.variant) == (0.12, 0.45, "reinforce_plus_plus + AR + Lopti")


def test_score_is_the_recorded_one_and_equals_the_windowed_mean(demo_uri: str) -> None:
    sweep = read_sweep("demo", demo_uri)
    own = sweep.histories[(sweep.histories.trial == "000-s0") & (sweep.histories.metric == "eval/accuracy")]
    assert list(own.step) == [0, 10, 20, 30, 40, 50, 60]
    row = sweep.trials[sweep.trials.trial == "000-s0"].iloc[0]
    assert row.score == pytest.approx(own.value.tail(3).mean())
    assert row.best == own.value.max() and row.step == 60


def test_configurations_average_their_seeds(demo_uri: str) -> None:
    sweep = read_sweep("demo", demo_uri)
    configurations = sweep.configurations().set_index("configuration")
    assert list(configurations.index) == ["0", "1", "2", "3", "4"]  # a seed of the last one failed
    assert set(configurations.seeds) == {2}
    scores = sweep.trials[sweep.trials.configuration == "2"].score
    assert configurations["mean"]["2"] == pytest.approx(scores.mean())
    assert (configurations.low["2"], configurations.high["2"]) == (scores.min(), scores.max())


def test_a_trial_without_recorded_score_gets_the_mean_of_its_window(tmp_path: Path) -> None:
    """A running sweep: one trial by a real tracker, its state known from the run's status alone."""
    uri = sqlite_store(tmp_path)
    objective = {"objective": "max eval/accuracy", "objective.window": 2}
    parent = open_parent_run(uri, "exp", "live", {}, objective)
    tags = {"mlflow.parentRunId": parent.run_id, "loptune.trial": "t", "loptune.sweep": "live"}
    tracker = Tracker(config_for(uri), context_for(tmp_path, **tags))
    for step, value in ((0, 0.1), (10, 0.4), (20, 0.6)):
        tracker.log({"eval/accuracy": value}, step)
    tracker.close()
    sweep = read_sweep("live", uri)
    (row,) = sweep.trials.itertuples()
    assert (row.trial, row.state, row.score) == ("t", "COMPLETE", 0.5)
    assert sweep.status == "RUNNING"


def test_a_trial_that_never_started_does_not_make_every_parameter_a_searched_one(tmp_path: Path) -> None:
    uri = sqlite_store(tmp_path)
    parent = open_parent_run(uri, "exp", "live", {}, {})
    full = {"algorithm.advantage": "grpo", "algorithm.ar_alpha": 0.1, "optim.lr": 1e-6}
    parent.reconcile(
        [
            TrialOutcome("live/1", "1", "COMPLETE", score=1.0, params=full),
            TrialOutcome("live/2", "2", "FAIL", params={"algorithm.ar_alpha": 0.5}),
        ]
    )
    assert read_sweep("live", uri).searched == ("algorithm.ar_alpha",)


def test_unknown_sweep_names_the_nearest(demo_uri: str) -> None:
    with pytest.raises(MissingError, match="did you mean demo"):
        read_sweep("dem0", demo_uri)


def test_the_objective_has_its_own_name_on_the_sealed_problems() -> None:
    assert Objective("eval/reward").sealed == "eval/reward/test"
    assert Objective("eval/accuracy/hard").sealed == "eval/accuracy/test"


def test_units_are_those_declared() -> None:
    assert unit_of("policy/kl") == "nats" and unit_of("optim/grad_norm") == "" and unit_of("unknown") == ""


def test_a_decision_is_read_under_the_numbers_of_its_sweep(tmp_path: Path) -> None:
    uri = sqlite_store(tmp_path)
    objective = {"objective": "max eval/accuracy", "objective.worthwhile": "0.02"}
    open_parent_run(uri, "exp", "live", {}, objective).finish("FINISHED")
    assert read_sweep("live", uri).confirmation is None
    looks = ((Standing("1", 3, 0.05, None, None, "open"),), (Standing("1", 6, 0.04, 0.01, 0.07, "better"),))
    design = Design((3, 6), 1, 0.02, (3.0, 2.0), (2.0, 1.5))
    confirms = ConfirmsSpec(sweep="live", configurations=[2, 7])
    space = load_space(find_space("quickstart")).model_copy(update={"confirms": confirms})
    record = decision_as_json(Decision(design, Noise(0.01, 4), looks), space, 1.5)
    tags = {"loptune.confirms": "live", "loptune.rounds": json.dumps(record)}
    open_parent_run(uri, "exp", "live-confirm", tags, objective).finish("FINISHED")
    sweep = read_sweep("live", uri)
    assert sweep.confirmation is not None and sweep.confirmation.rounds is not None
    found = sweep.confirmation.rounds
    assert sweep.objective.worthwhile == 0.02
    assert found.looks == (3, 6)
    assert (found.worthwhile, found.outcome, found.device_hours) == (0.02, "better", 1.5)
    assert list(found.standings.configuration) == ["7", "7"]
    assert math.isnan(found.standings.low[0]) and found.standings.high[1] == 0.07


def test_all_sweeps_of_a_store_are_read_without_curves(demo_uri: str) -> None:
    (sweep,), whole = read_scores(demo_uri), read_sweep("demo", demo_uri)
    assert sweep.histories.empty and not whole.histories.empty
    columns = ["trial", "state", "score", "variant", "label"]
    pd.testing.assert_frame_equal(sweep.trials[columns], whole.trials[columns])


def test_a_setting_is_a_model_and_a_task() -> None:
    generated = {"source": "generated", "people": [2, 3], "digits": [1]}
    run = {"model.name_or_path": "tiny", "data.task": "knights_knaves", "data.train": str([generated])}
    assert _setting([{}, run]) == ("tiny", "knights_knaves: 2, 3 people")
    assert _setting([{**run, "data.task": "addition"}]) == ("tiny", "addition: 1 digits")
    files = [{**generated, "source": name} for name in ("a.parquet", "b.csv")]
    assert _setting([{**run, "data.task": "math", "data.train": str(files)}])[1] == "math: a.parquet, b.csv"
    assert _setting([{**run, "data.train": str(files)[:20]}])[1] == "knights_knaves"
    assert _setting([]) == ("unknown", "unknown")


def test_finalists_are_kept_with_the_sweep_that_chose_them(tmp_path: Path) -> None:
    uri = sqlite_store(tmp_path)
    open_parent_run(uri, "exp", "live", {}, {}).finish("FINISHED")
    parent = open_parent_run(uri, "exp", "live-confirm", {"loptune.confirms": "live"}, {"seeds": "1"})
    parent.reconcile([TrialOutcome("1", "fresh", "COMPLETE", score=1.0, tags={"loptune.configuration": "7"})])
    fresh = read_sweep("live", uri).confirmation
    assert fresh is not None and list(fresh.trials.trial) == ["fresh"]
    assert list(fresh.trials.configuration) == ["7"]
