from pathlib import Path
from typing import Any

import optuna
import pytest

from sweep.cli import main
from sweep.record.folder import sweep_folder, write_spec
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.record.warm_start import warm_started
from sweep.search.proposals import propose_next
from sweep.search.study import ask
from sweep.space.file import load_space
from sweep.space.points import Parameters, Space
from sweep.space.spec import PriorSpec, SweepSpec
from sweep.winner.confirm import finalists_of, fresh_space
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.harness import write_space
from trainer.errors import ConfigError, MissingError

# Configuration n has alpha n / 10: the last lies outside of the space, the third failed, the fourth is unfinished.
BEFORE: dict[int, dict[int, float | str]] = {
    0: {0: 50.0, 4: 60.0},
    1: {0: 90.0, 4: 92.0},
    2: {0: 70.0, 4: "diverged"},
    3: {0: 80.0},
    4: {0: 99.0, 4: 99.0},
}
TPE = {"sampler": "tpe", "configurations": 2, "seed": 3, "warm_start": ["before"]}


def space(folder: Path, **search: Any) -> SweepSpec:
    return load_space(write_space(folder / "space.yaml", name="now", baselines=[], search={**TPE, **search}))


def before(folder: Path) -> None:
    write_sweep(folder, "before", BEFORE, seeds=[0, 4])


def test_finished_configurations_of_this_space_are_taken_and_the_others_counted(tmp_path: Path) -> None:
    before(tmp_path)
    narrow = {"parameters": {"algorithm.ar_alpha": {"uniform": [0.0, 0.3]}}}
    spec = load_space(write_space(tmp_path / "space.yaml", baselines=[], search=TPE, **narrow))
    spec, lines = warm_started(spec, tmp_path, "")
    assert lines == [
        "warm start: 2 configurations of before (3 left out: 1 failed, 1 unfinished, 1 outside of this space)"
    ]
    points: list[Parameters] = [{"algorithm.ar_alpha": 0.0}, {"algorithm.ar_alpha": 0.1}]
    assert spec.search.prior == [PriorSpec(sweep="before", seeds=[0, 4], points=points, scores=[55.0, 91.0])]


def test_a_sweep_goes_on_with_what_it_took(tmp_path: Path) -> None:
    before(tmp_path)
    spec, _ = warm_started(space(tmp_path), tmp_path, "")
    folder = sweep_folder(tmp_path, "now")
    folder.root.mkdir()
    write_spec(folder, spec)
    first = propose_next(spec, [])
    sweep_folder(tmp_path, "before").ledger.write_text("")
    assert open_sweep(tmp_path, "now").spec.search == spec.search
    assert propose_next(open_sweep(tmp_path, "now").spec, []) == first


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_the_sampler_learns_from_ranks_and_not_from_the_scale(sampler: str, tmp_path: Path) -> None:
    alphas = [number / 40 for number in range(20)]
    points = [{"algorithm.ar_alpha": alpha} for alpha in alphas]
    spec = space(tmp_path, sampler=sampler)

    def proposed(best: float, scale: float) -> list[float]:
        scores = [-scale * abs(alpha - best) for alpha in alphas]
        prior = [PriorSpec(sweep="before", seeds=[0], points=points, scores=scores)]
        seeded = [spec.search.model_copy(update={"prior": prior, "seed": seed}) for seed in range(5)]
        found = [propose_next(spec.model_copy(update={"search": search}), [])[0] for search in seeded]
        return [point["algorithm.ar_alpha"] for point in found if point]

    assert proposed(0.1, 1.0) == proposed(0.1, 1e6)
    assert max(proposed(0.1, 1.0)) < 0.25 < 0.3 < min(proposed(0.4, 1.0))


class _Looking(optuna.samplers.BaseSampler):
    """Remembers what it was told, and samples the middle."""

    def infer_relative_search_space(self, study: optuna.Study, trial: Any) -> dict[str, Any]:
        self.told = [(one.params["algorithm.ar_alpha"], one.value) for one in study.get_trials() if one.values]
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        return (param_distribution.low + param_distribution.high) / 2


def test_a_larger_sweep_does_not_outrank_a_smaller_one(tmp_path: Path) -> None:
    small, large = (
        PriorSpec(
            sweep=name, seeds=[0], scores=scores, points=[{"algorithm.ar_alpha": score / 10} for score in scores]
        )
        for name, scores in (("small", [2.0, 1.0]), ("large", [1.0, 4.0, 3.0, 2.0]))
    )
    spec, looking = space(tmp_path), _Looking()
    spec = spec.model_copy(update={"search": spec.search.model_copy(update={"prior": [small, large]})})
    ask(spec, Space(spec.parameters), [], looking)
    ranks = [(0.2, 0.75), (0.1, 0.25), (0.1, 0.125), (0.4, 0.875), (0.3, 0.625), (0.2, 0.375)]
    assert looking.told == ranks


def test_seeds_that_chose_a_prior_are_not_fresh(tmp_path: Path) -> None:
    before(tmp_path)
    spec, _ = warm_started(space(tmp_path), tmp_path, "")
    write_sweep(tmp_path, "now", {0: {0: 0.5}, 1: {0: 0.6}})
    sweep = open_sweep(tmp_path, "now")
    chosen = finalists_of(sweep, 1)
    assert fresh_space(sweep, chosen, 2).seeds == [1, 2]
    warm = SweepRecord(sweep.spec.model_copy(update={"search": spec.search}), sweep.folder)
    assert fresh_space(warm, chosen, 2, sealed=False).seeds == [5, 6]


def test_what_cannot_be_taken_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before(tmp_path)
    write_sweep(
        tmp_path, "other", {0: {0: 0.5}}, parameters={"algorithm.ar_alpha": {"value": 0.1}, "optim.lr": {"value": 1}}
    )
    write_sweep(tmp_path, "idle", {0: {0: "diverged"}})
    for name, told in (
        ("befor", "no sweep named befor.*did you mean before"),
        ("other", "other searches other parameters: also optim.lr.*these search the same: before, idle"),
        ("idle", "idle has no finished configuration in this space .1 left out: 1 failed"),
    ):
        with pytest.raises((MissingError, ConfigError), match=f"(?s){told}"):
            warm_started(space(tmp_path, warm_start=[name]), tmp_path, "")
    with pytest.raises(ConfigError, match="random learns nothing from warm_start"):
        space(tmp_path, sampler="random")
    space(tmp_path)
    assert main(["plan", str(tmp_path / "space.yaml"), "--runs-dir", str(tmp_path), "--step-seconds", "1"]) == 0
    assert "warm start: 3 configurations of before (2 left out: 1 failed, 1 unfinished)" in capsys.readouterr().err
