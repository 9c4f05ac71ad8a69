"""A second objective: recorded with every trial, carried by every view, and decides no verdict."""

import json
import math

import optuna
import pandas as pd
import pytest

from dashboards.headline import headline
from dashboards.next_step import chosen
from dashboards.pages.report import write_pages
from dashboards.pictures.front import front_points, two_objectives
from dashboards.sources.stored import pack, unpack
from loptune.errors import ConfigError
from sweep.cli import main
from sweep.record.best import front_of
from sweep.record.results import read_results
from sweep.record.warm_start import warm_started
from sweep.search.study import write_study
from sweep.space.file import load_space
from sweep.space.scoring import guards_by, second_of
from sweep.tracking.publish_report import summary
from tests.refusals import refused
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.harness import write_space

ALPHA = "algorithm.ar_alpha"
SECOND = {"metric": "seconds"}
# configuration -> its score and its seconds on three seeds; 1 is best, 2 is cheap, 3 is neither
SCORES = {
    0: {0: 0.50, 1: 0.52, 2: 0.51},
    1: {0: 0.70, 1: 0.72, 2: 0.71},
    2: {0: 0.48, 1: 0.50, 2: 0.49},
    3: {0: 0.46, 1: 0.47, 2: 0.48},
}
SECONDS = {0: 50.0, 1: 90.0, 2: 20.0, 3: 60.0}


def ended(tmp_path, name="demo", **changes):
    seconds = {
        number: {seed: value + seed for seed in SCORES[number]} for number, value in SECONDS.items()
    }
    settings = {"objective": {"second": SECOND}, **changes}
    return write_sweep(tmp_path, name, SCORES, seconds=seconds, **settings)


def test_every_view_carries_the_second_objective(tmp_path, capsys):
    sweep = ended(tmp_path)
    results = read_results(sweep)
    assert {trial.second for trial in results.trials if trial.configuration == "1"} == {90, 91, 92}
    assert front_of(sweep) == [1, 0, 2]
    points = {point.configuration: point for point in front_points(results)}
    assert [number for number, point in points.items() if point.on_front] == ["1", "0", "2"]
    assert points["1"].score.mean == pytest.approx(0.71)
    assert points["1"].second.mean == pytest.approx(91)
    low, high = points["1"].second.interval
    assert (low + high) / 2 == pytest.approx(91) and high - low == pytest.approx(
        2 * 2.91999 / 3**0.5, rel=1e-5
    )
    picture = two_objectives(results)
    assert picture.title == "eval/accuracy against seconds"
    assert "The verdict is on eval/accuracy alone" in picture.sentence
    page = write_pages(results, tmp_path / "report")
    assert "eval/accuracy against seconds" in page.read_text()
    table = pd.read_csv(tmp_path / "report" / "trials.csv")
    assert set(table.second[table.configuration == 3]) == {60, 61, 62}
    assert summary(results)["final/seconds"] == pytest.approx(91)
    assert front_points(unpack(pack(results), "results")) == front_points(results)
    assert main(["status", "demo", "--runs-dir", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["front"] == [1, 0, 2]
    assert {row["second"] for row in shown["trials"] if row["configuration"] == 2} == {20, 21, 22}
    assert main(["status", "demo", "--runs-dir", str(tmp_path)]) == 0
    assert "front of eval/accuracy and seconds: #1, #0, #2" in capsys.readouterr().out


def test_the_verdict_stays_on_the_score(tmp_path):
    with_second = read_results(ended(tmp_path))
    alone = read_results(write_sweep(tmp_path, "alone", SCORES))
    assert headline(with_second).sentence == headline(alone).sentence
    assert chosen(with_second) == chosen(alone)
    assert two_objectives(alone) is None and front_points(alone) == []
    assert all(math.isnan(trial.second) for trial in alone.trials)


def test_a_sweep_without_seeds_has_a_front_without_bars(tmp_path):
    scores = {number: {0: row[0]} for number, row in SCORES.items()}
    seconds = {number: {0: value} for number, value in SECONDS.items()}
    sweep = write_sweep(tmp_path, scores=scores, seconds=seconds, objective={"second": SECOND})
    points = front_points(read_results(sweep))
    assert all(point.score.interval is None for point in points)
    assert two_objectives(read_results(sweep)) is not None


def test_the_exported_study_has_both_objectives(tmp_path):
    sweep = ended(tmp_path)
    write_study(sweep.spec, sweep.configurations, tmp_path / "study.db")
    study = optuna.load_study(study_name="demo", storage=f"sqlite:///{tmp_path / 'study.db'}")
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert sorted(trial.number for trial in study.best_trials) == [0, 1, 2]
    assert study.trials[1].values == pytest.approx([0.71, 91])


def test_a_search_with_two_objectives_starts_from_the_front_of_an_earlier_one(tmp_path):
    # The front is 1, 0, 2, 4; by score alone, 1, 2 and 3 are the best three beside the baseline 0.
    scores = {**SCORES, 4: dict.fromkeys(range(3), 0.4)}
    seconds = {number: dict.fromkeys(range(3), value) for number, value in SECONDS.items()}
    seconds[4] = dict.fromkeys(range(3), 5.0)
    write_sweep(tmp_path, "before", scores, seconds=seconds, objective={"second": SECOND})
    taken = {}
    for sampler in ("tpe", "motpe"):
        search = {"sampler": sampler, "configurations": 1, "warm_start": ["before"]}
        space = write_space(
            tmp_path / f"{sampler}.yaml",
            name="now",
            baselines=[{ALPHA: 0.0}],
            objective={"second": SECOND},
            search=search,
        )
        spec, _ = warm_started(load_space(space), tmp_path, "space.yaml")
        taken[sampler] = [point[ALPHA] for point in spec.baselines]
    assert taken["tpe"] == [0.0, 0.1, 0.2, 0.3]
    assert taken["motpe"] == [0.0, 0.1, 0.4, 0.2]


@pytest.mark.parametrize(
    ("metric", "mode", "expected"),
    [
        ("seconds", "min", 12.0),  # of steps and evaluations
        ("cpu_hours", "min", 12.0 / 3600),
        ("tokens", "min", 30.0),
        ("completions", "max", 6.0),
        ("eval/completion_length", "min", 45.0),  # mean of the last two evaluations
        ("eval/accuracy/amc", "max", 0.25),
    ],
)
def test_what_a_trial_has_used_or_scored_is_its_second_value(metric, mode, expected, tmp_path):
    objective = {"window": 2, "second": {"metric": metric}}
    if metric == "completions":
        objective["second"]["mode"] = "max"
    spec = load_space(write_space(tmp_path / "space.yaml", objective=objective))
    assert spec.objective.second.direction == mode
    records = []
    for step in range(4):
        record = {"step": step, "time/step": 2.0, "time/evaluation": 1.0, "rollout/tokens": 10.0}
        record |= {"eval/completion_length": 20.0 * step - 5, "eval/accuracy/amc": 0.1 * step}
        records.append(record | {"rollout/completions": 2.0})
    records[0] |= {"rollout/tokens": 0.0, "rollout/completions": 0.0}
    assert second_of(spec).value(records) == pytest.approx(expected)
    objective = {"window": 2, "guards": [f"{metric}:1"]}
    guard = guards_by(load_space(write_space(tmp_path / "guarded.yaml", objective=objective)))
    assert guard[metric].value(records) == pytest.approx(expected)


def test_a_second_metric_that_is_never_logged_fails_the_trial(tmp_path):
    objective = {"second": {"metric": "eval/accuracy/amc"}}
    second = second_of(load_space(write_space(tmp_path / "space.yaml", objective=objective)))
    with refused("metric-not-logged", ConfigError):
        second.check(second.value([{"step": 1, "eval/accuracy": 0.5}]))
    second.check(0.5)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"search": {"sampler": "nsga2", "configurations": 2}}, "one-objective"),
        ({"objective": {"second": {"metric": "gpu_hours"}}}, "unknown-axis"),
        ({"objective": {"second": {"metric": "eval/acuracy"}}}, "unmeasured-objective"),
        (
            {
                "objective": {"second": SECOND},
                "search": {"sampler": "motpe", "configurations": 2},
                "scheduler": {"asha": {"grace_period": 1}},
            },
            "two-objectives-stopped-early",
        ),
    ],
)
def test_two_objectives_that_cannot_be_searched_are_refused(changes, code, tmp_path):
    with refused(code):
        load_space(write_space(tmp_path / "space.yaml", **changes))


def test_trials_of_before_are_read_without_a_second_value(tmp_path):
    sweep = write_sweep(tmp_path, scores=SCORES, objective={"second": SECOND})
    results = read_results(sweep)
    assert front_of(sweep) == [] and two_objectives(results) is None
    write_study(sweep.spec, sweep.configurations, tmp_path / "study.db")
    study = optuna.load_study(study_name="demo", storage=f"sqlite:///{tmp_path / 'study.db'}")
    assert study.best_trials == []
