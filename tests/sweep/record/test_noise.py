import json
import math

import numpy as np
import pytest

from dashboards.statistics.power import minimum_detectable_effect, seeds_needed
from loptune.errors import StorageError
from sweep.record.noise import forecast_noise, noise_lines, sweep_noise, unpaired_noise
from sweep.record.sweep_record import SweepRecord, open_sweep, readable_sweeps
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.winner.test_rounds import RESULTS
from trainer.evaluation.correctness import correctness_record
from trainer.run_folder import RunFolder

WHOLE = {0: {0: 0.50, 1: 0.52, 2: 0.54}, 1: {0: 0.56, 1: 0.60, 2: 0.58}}


def noise_of(runs, name, results):
    sweep = write_sweep(runs, name, results, seeds=[0, 1, 2])
    return sweep_noise(sweep), unpaired_noise(sweep)


def test_seeds_are_paired_and_only_whole_configurations_count(tmp_path):
    # The differences 0.06, 0.08 and 0.04 lie 0, 0.02 and -0.02 from their mean, and each one has
    # half of that.
    paired, _ = noise_of(tmp_path, "whole", WHOLE)
    assert paired == (pytest.approx(math.sqrt(4 * 0.01**2 / 2)), 2)
    broken, _ = noise_of(
        tmp_path, "broken", {**WHOLE, 2: {0: 9.0, 1: "diverged", 2: 0.1}, 3: {0: 0.4}}
    )
    assert broken == paired


PUBLISHED = {"worthwhile": 0.02, "published": 0.14}


def test_an_earlier_sweep_tells_what_the_plan_can_find(tmp_path):
    sweep = write_sweep(tmp_path, "before", RESULTS, seeds=[0, 1, 2])
    noise = sweep_noise(sweep)
    spec = write_sweep(tmp_path / "other", "planned", {}, seeds=[0, 1, 2], objective=PUBLISHED).spec
    forecast = forecast_noise(spec, readable_sweeps(tmp_path), 8)
    assert forecast is not None
    assert (forecast.sd, forecast.dof, forecast.source) == (*noise, "measured in before")
    assert forecast.detectable == minimum_detectable_effect(noise.sd, 3, 8, blocks=True)
    needed = seeds_needed(0.14, noise.sd, noise.dof, 8, blocks=True)
    published = forecast.wanted["published"]
    assert (published.gain, published.everywhere) == (0.14, needed)
    lines = noise_lines(forecast, spec, 8)
    assert lines[0].endswith(
        f"between seeds is {noise.sd:.2g} (measured in before, 6 degrees of freedom)"
    )
    detected = "with 3 seeds per configuration (8 configurations), an improvement of 0.0"
    assert lines[1].startswith(detected)
    assert str(needed) == "3 seeds" and " 0.14 takes 3 seeds" in lines[3]
    assert f"at most {published.in_rounds} fresh seeds" in lines[3]


def test_two_seeds_of_one_baseline_are_an_upper_bound(tmp_path):
    spec = write_sweep(tmp_path, "noise", {0: {0: 0.5, 1: 0.52}}).spec
    forecast = forecast_noise(spec, readable_sweeps(tmp_path), 4)
    assert forecast is not None and forecast.source == "measured in noise, not paired"
    assert forecast.sd == pytest.approx(0.02 / math.sqrt(2)) and forecast.dof == 1


def test_another_evaluation_has_another_noise(tmp_path):
    write_sweep(tmp_path, "before", RESULTS, seeds=[0, 1, 2])
    spec = write_sweep(tmp_path / "other", "planned", {}, objective={"window": 1}).spec
    assert forecast_noise(spec, readable_sweeps(tmp_path), 4) is None
    assert len(noise_lines(None, spec, 4)) == 1  # two seeds would measure it


def test_one_seed_finds_nothing(tmp_path):
    write_sweep(tmp_path, "before", RESULTS, seeds=[0, 1, 2])
    spec = write_sweep(tmp_path / "other", "planned", {}).spec
    forecast = forecast_noise(spec, readable_sweeps(tmp_path), 4)
    assert forecast is not None and forecast.detectable is None
    sentence = (
        "with 1 seed per configuration (4 configurations), no difference can be distinguished from "
        "chance"
    )
    assert noise_lines(forecast, spec, 4)[1] == sentence


def test_sweeps_that_train_alike_are_pooled(tmp_path):
    for name, results in [
        ("a", RESULTS),
        ("b", {0: RESULTS[0], 1: RESULTS[1]}),
        ("c", {0: {0: 0.1, 1: 0.9}}),
    ]:
        write_sweep(tmp_path, name, results, seeds=[0, 1, 2])
    first, second = (sweep_noise(open_sweep(tmp_path, name)) for name in ("a", "b"))
    forecast = forecast_noise(open_sweep(tmp_path, "a").spec, readable_sweeps(tmp_path), 4)
    assert forecast is not None and forecast.source == "measured in a, b"  # of c nothing is paired
    squares = first.dof * first.sd**2 + second.dof * second.sd**2
    assert forecast.dof == first.dof + second.dof == 8
    assert forecast.sd == pytest.approx(math.sqrt(squares / 8))


def test_the_plan_says_whether_problems_or_seeds_are_cheaper(tmp_path):
    """Seeds differ by what they solve of four problems, and an evaluation takes a tenth of the
    time.
    """
    write_solved_problems(write_sweep(tmp_path, "before", RESULTS, seeds=[0, 1, 2]))
    spec = write_sweep(tmp_path / "other", "planned", {}, seeds=[0, 1, 2]).spec
    forecast = forecast_noise(spec, readable_sweeps(tmp_path), 8)
    assert forecast is not None and forecast.cheaper is not None
    assert forecast.cheaper.cheaper == "problems"
    assert forecast.cheaper.cost_of_problems < 0.5 * forecast.cheaper.cost_of_seeds
    assert any(line.endswith("problems are cheaper") for line in noise_lines(forecast, spec, 8))


def test_the_times_of_a_damaged_record_are_left_out(tmp_path, monkeypatch):
    write_solved_problems(write_sweep(tmp_path, "before", RESULTS, seeds=[0, 1, 2]))
    spec = write_sweep(tmp_path / "other", "planned", {}, seeds=[0, 1, 2]).spec
    undamaged = forecast_noise(spec, readable_sweeps(tmp_path), 8)
    write_solved_problems(write_sweep(tmp_path, "damaged", RESULTS, seeds=[0, 1, 2]), step_s=1.0)
    metrics = SweepRecord.metrics

    def damaged_at_its_end(sweep):
        yield from metrics(sweep)
        if sweep.folder.name == "damaged":
            raise StorageError("damaged", "metrics.jsonl", "remove the line", code="record-damaged")

    monkeypatch.setattr(SweepRecord, "metrics", damaged_at_its_end)
    forecast = forecast_noise(spec, readable_sweeps(tmp_path), 8)
    assert undamaged is not None and forecast is not None
    assert forecast.cheaper == undamaged.cheaper


def write_solved_problems(sweep, step_s=9.0):
    """Record, for two configurations on three seeds, which of four problems were solved."""
    solved = {
        0: [[1, 0, 0, 1], [0, 1, 1, 0], [1, 0, 1, 0]],
        1: [[0, 1, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]],
    }
    for number, by_seed in solved.items():
        for seed, correct in enumerate(by_seed):
            folder = RunFolder(sweep.folder.trial(f"c{number:03d}-s{seed}"))
            counts = (np.array(correct), np.ones(4))
            line = {"step": 4, **correctness_record({"main": counts})}
            folder.correctness.write_text(json.dumps(line) + "\n")
            line = {"step": 4, "time": 1.0, "time/step": step_s, "time/evaluation": 1.0}
            folder.metrics.write_text(json.dumps(line) + "\n")
    return sweep
