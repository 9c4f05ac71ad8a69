import math
from pathlib import Path

import pytest

from dashboards.statistics.seed_noise import Noise
from sweep.record.folder import existing_sweep, read_spec
from sweep.record.noise import sweep_noise, unpaired_noise
from sweep.record.summary import configurations
from tests.sweep.ended_sweeps import write_sweep

WHOLE: dict[int, dict[int, float | str]] = {0: {0: 0.50, 1: 0.52, 2: 0.54}, 1: {0: 0.56, 1: 0.60, 2: 0.58}}


def noise_of(runs: Path, name: str, results: dict[int, dict[int, float | str]]) -> tuple[Noise, Noise]:
    write_sweep(runs, name, results, seeds=[0, 1, 2])
    folder = existing_sweep(runs, name)
    return sweep_noise(read_spec(folder), configurations(folder)), unpaired_noise(configurations(folder))


def test_seeds_are_paired_and_only_whole_configurations_count(tmp_path: Path) -> None:
    # The differences 0.06, 0.08 and 0.04 lie 0, 0.02 and -0.02 from their mean, and each one has half of that.
    paired, _ = noise_of(tmp_path, "whole", WHOLE)
    assert paired == (pytest.approx(math.sqrt(4 * 0.01**2 / 2)), 2)
    broken, _ = noise_of(tmp_path, "broken", {**WHOLE, 2: {0: 9.0, 1: "diverged", 2: 0.1}, 3: {0: 0.4}})
    assert broken == paired


def test_configurations_one_by_one_keep_what_seeds_do_to_all(tmp_path: Path) -> None:
    _, unpaired = noise_of(tmp_path, "whole", {**WHOLE, 2: {0: 0.1, 1: "diverged"}})
    assert unpaired == (pytest.approx(0.02), 4)  # both vary by 0.02
    assert noise_of(tmp_path, "one", {0: {0: 0.5}})[1].freedom == 0
