import math
from pathlib import Path

import pytest

from dashboards.statistics.power import minimum_detectable_effect, seeds_for
from sweep.record.folder import existing_sweep, read_spec, sweep_folder
from sweep.record.noise import sweep_noise
from sweep.record.summary import configurations
from sweep.views.noise import forecast_noise, noise_lines
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.winner.test_decide import RESULTS

PUBLISHED = {"worthwhile": 0.02, "published": 0.14}


def test_an_earlier_sweep_tells_what_the_plan_can_find(tmp_path: Path) -> None:
    write_sweep(tmp_path, "before", RESULTS, seeds=[0, 1, 2])
    noise = sweep_noise(
        read_spec(existing_sweep(tmp_path, "before")), configurations(existing_sweep(tmp_path, "before"))
    )
    write_sweep(tmp_path / "other", "planned", {}, seeds=[0, 1, 2], objective=PUBLISHED)
    spec = read_spec(existing_sweep(tmp_path / "other", "planned"))
    found = forecast_noise(spec, sweep_folder(tmp_path, "planned"), 8)
    assert found is not None
    assert (found.deviation, found.freedom, found.source) == (*noise, "measured in before")
    assert found.detectable == minimum_detectable_effect(noise.deviation, 3, 8)
    assert found.wanted["published"][:2] == (0.14, seeds_for(0.14, noise.deviation, 8))
    lines = noise_lines(found, spec, 8)
    # A chi-square of 6 degrees of freedom lies between 2.204 and 10.645 in 8 of 10.
    low, high = (noise.deviation * math.sqrt(6 / value) for value in (10.645, 2.204))
    assert found.range == pytest.approx((low, high), rel=1e-3)
    assert lines[0] == (
        f"{noise.deviation:.2g} between seeds (measured in before), {low:.2g} to {high:.2g} at 80 % with 6 "
        "degrees of freedom"
    )
    assert lines[1].startswith("3 seeds of 8 configurations find, 8 times in 10, a gain of 0.0")
    assert lines[3].startswith("the published gain of 0.14 takes 2 seeds of every configuration; `sweep decide`")


def test_two_seeds_of_one_baseline_are_an_upper_bound(tmp_path: Path) -> None:
    write_sweep(tmp_path, "noise", {0: {0: 0.5, 1: 0.52}}, seeds=[0, 1])
    spec = read_spec(existing_sweep(tmp_path, "noise"))
    found = forecast_noise(spec, sweep_folder(tmp_path, "planned"), 4)
    assert found is not None and found.source == "measured in noise, not paired"
    assert found.deviation == pytest.approx(0.02 / math.sqrt(2)) and found.freedom == 1


def test_another_evaluation_has_another_noise(tmp_path: Path) -> None:
    write_sweep(tmp_path, "before", RESULTS, seeds=[0, 1, 2])
    write_sweep(tmp_path / "other", "planned", {}, seeds=[0], objective={"window": 1})
    spec = read_spec(existing_sweep(tmp_path / "other", "planned"))
    assert forecast_noise(spec, sweep_folder(tmp_path, "planned"), 4) is None
    (line,) = noise_lines(None, spec, 4)
    assert "sweep run SPACE search.configurations=0 'seeds=[0, 1]' --name planned-noise" in line


def test_one_seed_finds_nothing(tmp_path: Path) -> None:
    write_sweep(tmp_path, "before", RESULTS, seeds=[0, 1, 2])
    write_sweep(tmp_path / "other", "planned", {}, seeds=[0])
    spec = read_spec(existing_sweep(tmp_path / "other", "planned"))
    found = forecast_noise(spec, sweep_folder(tmp_path, "planned"), 4)
    assert found is not None and found.detectable is None
    assert noise_lines(found, spec, 4)[1] == (
        "1 seed of 4 configurations find nothing: one seed tells no difference from chance"
    )


def test_sweeps_that_train_alike_are_pooled(tmp_path: Path) -> None:
    for name, results in [("a", RESULTS), ("b", {0: RESULTS[0], 1: RESULTS[1]}), ("c", {0: {0: 0.1, 1: 0.9}})]:
        write_sweep(tmp_path, name, results, seeds=[0, 1, 2])
    one, other = (
        sweep_noise(read_spec(folder), configurations(folder))
        for folder in (existing_sweep(tmp_path, "a"), existing_sweep(tmp_path, "b"))
    )
    found = forecast_noise(read_spec(existing_sweep(tmp_path, "a")), sweep_folder(tmp_path, "planned"), 4)
    assert found is not None and found.source == "measured in a, b"  # of c nothing is paired
    squares = one.freedom * one.deviation**2 + other.freedom * other.deviation**2
    assert found.freedom == one.freedom + other.freedom == 8
    assert found.deviation == pytest.approx(math.sqrt(squares / 8))
