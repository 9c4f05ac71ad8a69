"""Every sampler: what it is told of the history, and what it proposes."""

import math
import statistics
import warnings

import optuna
import pytest

from sweep.search.study import frozen_trial, propose_next, write_study
from sweep.search.trial_report import TrialReport
from sweep.space.points import Space
from tests.sweep.search.instant_sweeps import (
    ALPHA,
    ETA,
    GRID,
    NUMERIC,
    drain,
    ended,
    score_of,
    searcher_in,
)
from tests.sweep.spaces import make_spec

SAMPLERS = ("tpe", "random", "grid", "gp")


def space_for(sampler, tmp_path, **search):
    return make_spec(
        tmp_path,
        parameters=GRID if sampler == "grid" else NUMERIC,
        baselines=[],
        search={"sampler": sampler, "configurations": 8, "seed": 5, "startup": 3, **search},
        seeds=[0],
    )


@pytest.mark.parametrize("sampler", SAMPLERS)
class TestEverySampler:
    def test_values_in_range_and_conditions_respected(self, sampler, tmp_path):
        spec = space_for(sampler, tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no sampler may clutter the table
            searcher = searcher_in(tmp_path, spec)
            suggestions = drain(searcher)
        assert len(suggestions) == 8
        assert len({c.fingerprint for c in searcher.configurations}) == 8
        for suggestion in suggestions:
            point = suggestion["parameters"]
            assert searcher.space.contains(point)
            assert (ETA in point) == point["lopti"]
            assert suggestion["overrides"][ETA] == (point[ETA] if point["lopti"] else 0.0)
            assert set(suggestion["overrides"]) == {*searcher.spec.searched, "seed"}

    def test_same_seed_same_configurations(self, sampler, tmp_path):
        runs = []
        for name, seed in (("a", 5), ("b", 5), ("c", 6)):
            folder = tmp_path / name
            folder.mkdir()
            suggestions = drain(searcher_in(folder, space_for(sampler, folder, seed=seed)))
            runs.append([s["parameters"] for s in suggestions])
        assert runs[0] == runs[1]
        assert runs[0] != runs[2]

    def test_a_new_driver_proposes_what_the_old_one_would_have(self, sampler, tmp_path):
        spec = space_for(sampler, tmp_path)
        (tmp_path / "whole").mkdir()
        whole = [s["parameters"] for s in drain(searcher_in(tmp_path / "whole", spec), parallel=1)]
        parts = []
        for number in range(8):  # a driver that dies after every trial
            searcher = searcher_in(tmp_path, spec)
            suggestion = searcher.suggest(str(number))
            searcher.on_trial_complete(str(number), ended(score_of(suggestion)))
            parts.append(suggestion["parameters"])
        assert parts == whole


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_sampler_learns(sampler, tmp_path):
    spec = space_for(sampler, tmp_path, configurations=40, startup=8)
    alphas = [s["parameters"][ALPHA] for s in drain(searcher_in(tmp_path, spec), parallel=1)]
    distances = [abs(alpha - 0.3) for alpha in alphas]
    assert sum(distances[-15:]) / 15 < sum(distances[:8]) / 8


def test_baseline_outside_of_the_range_does_not_spoil_the_sampler(tmp_path):
    for sampler in ("tpe", "gp"):
        folder = tmp_path / sampler
        folder.mkdir()
        spec = make_spec(
            folder,
            parameters={**NUMERIC, ALPHA: {"uniform": [0.1, 0.5]}},
            baselines=[{ALPHA: 0.0, "lopti": False}, {ALPHA: 0.2, "lopti": False}],
            search={"sampler": sampler, "configurations": 8, "startup": 2},
            seeds=[0],
        )
        points = [s["parameters"] for s in drain(searcher_in(folder, spec))]
        assert points[0][ALPHA] == 0.0
        assert all(0.1 <= point[ALPHA] <= 0.5 for point in points[1:])


def test_a_search_without_baselines_begins_with_the_programs_own_values(tmp_path):
    for low, begins in ((1e-6, True), (1e-3, False)):
        rate = {"optim.lr": {"loguniform": [low, 1e-2]}}
        search = {"configurations": 2}
        spec = make_spec(tmp_path, parameters=rate, baselines=[], search=search, seeds=[0])
        first = propose_next(spec, [])
        assert (first == {"optim.lr": spec.trainer.base.optim.lr}) == begins


def test_the_study_for_people_has_every_configuration_and_its_scores(tmp_path):
    searcher = searcher_in(tmp_path, space_for("random", tmp_path))
    drain(searcher)
    path = tmp_path / "study.db"
    path.write_text("of an earlier call")
    write_study(searcher.spec, searcher.configurations, path)
    study = optuna.load_study(study_name=searcher.spec.name, storage=f"sqlite:///{path}")
    scores = [configuration.results[0].score for configuration in searcher.configurations]
    assert [trial.value for trial in study.trials] == scores
    assert [trial.user_attrs["configuration"] for trial in study.trials] == [
        c.resolved for c in searcher.configurations
    ]


def test_samplers_see_the_order_of_numbers_and_people_their_values(tmp_path):
    parameters = {
        ALPHA: {"choice": [0.5, 0.0, 0.3]},
        "algorithm.advantage": {"choice": ["grpo", "rloo"]},
        "algorithm.update_epochs": {"int": [2, 6, 2]},
    }
    search = {"sampler": "gp", "startup": 3, "configurations": 8}
    spec = make_spec(tmp_path, parameters=parameters, baselines=[], search=search, seeds=[0])
    searcher = searcher_in(tmp_path, spec)
    drain(searcher)
    for configuration in searcher.configurations:
        point = configuration.parameters
        seen = frozen_trial(spec, Space(spec.parameters), configuration, for_sampler=True).params
        assert [0.0, 0.3, 0.5][seen[ALPHA]] == point[ALPHA]
        assert [2, 4, 6][seen["algorithm.update_epochs"]] == point["algorithm.update_epochs"]
        assert seen["algorithm.advantage"] == point["algorithm.advantage"]
        assert frozen_trial(spec, Space(spec.parameters), configuration).params == point
    assert len({str(configuration.parameters) for configuration in searcher.configurations}) == 8


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_stepped_and_logarithmic_whole_numbers(sampler, tmp_path):
    parameters = {ALPHA: {"quniform": [0.0, 0.3, 0.1]}, "rollout.group_size": {"logint": [2, 3]}}
    search = {"sampler": sampler, "startup": 3, "seed": 1}

    def searching(count):
        spec = make_spec(
            tmp_path,
            parameters=parameters,
            baselines=[],
            search={**search, "configurations": count},
            seeds=[0],
        )
        return searcher_in(tmp_path, spec)

    drain(searching(5))
    resumed = searching(8)
    drain(resumed)
    points = [configuration.parameters for configuration in resumed.configurations]
    # all of the 4 x 2 points, each once
    assert sorted((point[ALPHA], point["rollout.group_size"]) for point in points) == [
        (alpha, size) for alpha in (0.0, 0.1, 0.2, 0.3) for size in (2, 3)
    ]
    assert all(type(point["rollout.group_size"]) is int for point in points)
    shown = frozen_trial(resumed.spec, Space(resumed.spec.parameters), resumed.configurations[0])
    assert shown.params == points[0]


def test_logarithmic_whole_numbers_prefer_small_ones(tmp_path):
    key = "optim.tokens_per_microbatch"
    search = {"sampler": "random", "configurations": 40}
    spec = make_spec(
        tmp_path,
        parameters={key: {"logint": [1, 1_000_000]}},
        baselines=[],
        search=search,
        seeds=[0],
    )
    values = [
        suggestion["parameters"][key]
        for suggestion in drain(searcher_in(tmp_path, spec), result=lambda _: ended(0.5))
    ]
    assert 10 <= sum(value < 1000 for value in values) <= 30  # half of the decades
    assert max(values) > 100_000


def two_objectives(folder, sampler):
    return make_spec(
        folder,
        objective={"second": {"metric": "seconds"}},
        parameters={ALPHA: {"uniform": [0.0, 0.5]}, "optim.lr": {"loguniform": [1e-6, 1e-3]}},
        baselines=[],
        search={"sampler": sampler, "configurations": 64, "startup": 8, "seed": 3},
        seeds=[0],
    )


def traded(suggestion):
    """The front is the learning rate 3e-5, where alpha trades accuracy for seconds."""
    alpha = suggestion["parameters"][ALPHA]
    loss = abs(math.log10(suggestion["parameters"]["optim.lr"] / 3e-5))
    report = TrialReport(60, alpha - loss, second=alpha + loss, finished=True)
    return report.to_result()


@pytest.mark.parametrize("sampler", ["nsga2", "motpe"])
def test_a_sampler_of_two_objectives_learns_the_front(sampler, tmp_path):
    seen = drain(searcher_in(tmp_path, two_objectives(tmp_path, sampler)), 1, traded)
    losses = [abs(math.log10(each["parameters"]["optim.lr"] / 3e-5)) for each in seen]
    assert statistics.median(losses[-16:]) < 0.5 * statistics.median(losses[:8])
    alphas = [each["parameters"][ALPHA] for each in seen[-16:]]
    assert max(alphas) - min(alphas) > 0.2  # the front, and not one end of it


def test_a_repeated_value_is_not_a_new_one_by_a_rounding_error(tmp_path):
    """Optuna's logarithms return 0.0010000000000000002 for a parent's 0.001."""
    spec = two_objectives(tmp_path, "nsga2")
    for suggestion in drain(searcher_in(tmp_path, spec), 1, traded):
        rate = suggestion["parameters"]["optim.lr"]
        assert rate == float(f"{rate:.12g}")


def test_a_search_with_two_objectives_goes_on_from_its_record(tmp_path):
    proposed = []
    for folder, cuts in ((tmp_path / "whole", 1), (tmp_path / "cut", 2)):
        folder.mkdir()
        spec = two_objectives(folder, "nsga2")
        for part in range(cuts, 0, -1):
            search = spec.search.model_copy(update={"configurations": 24 // part})
            drain(searcher_in(folder, spec.model_copy(update={"search": search})), 1, traded)
        proposed.append([each.parameters for each in searcher_in(folder, spec).configurations])
    assert len(proposed[0]) == 24 and proposed[0] == proposed[1]
