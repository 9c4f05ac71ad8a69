"""The published search spaces: what they plan, and that each runs from its first trial to its end."""

import itertools
from pathlib import Path

import pytest
import yaml

from sweep.cli import main
from sweep.record.summary import planned_trials
from sweep.space.file import load_space
from sweep.space.points import Space
from sweep.space.spec import SweepSpec
from tests.paths import ROOT
from tests.sweep.harness import metrics, results

SPACES = sorted((ROOT / "search_spaces").glob("*.yaml"))
PUBLISHED = {path.stem: path for path in SPACES}
ON_GPUS = [name for name in PUBLISHED if name not in ("quickstart", "update_rules", "hard_puzzles")]


def resolved_grid(spec: SweepSpec) -> list[dict[str, object]]:
    space = Space(spec.parameters)
    return [space.resolve(point, spec.base) for point in space.grid(lambda parameter: parameter.options or [])]


def baselines(spec: SweepSpec) -> list[dict[str, object]]:
    space = Space(spec.parameters)
    return [space.resolve(space.complete(baseline, spec.base), spec.base) for baseline in spec.baselines]


@pytest.mark.parametrize("name", ON_GPUS)
def test_every_space_is_right_as_it_stands(name):
    spec = load_space(PUBLISHED[name])
    assert spec.name == name
    on_one = name.endswith("_lora")
    assert spec.resources.gpus_per_trial == spec.resources.workers_per_trial == (1 if on_one else 4)
    assert spec.base.parallel.strategy == ("none" if on_one else "deepspeed")
    assert (spec.base.model.lora.r > 0) == on_one
    assert spec.base.model.name_or_path.startswith("Qwen/")
    assert spec.objective.window == 3
    assert len(spec.seeds) >= 2
    # Plain GRPO comes first: everything is compared with it.
    first = baselines(spec)[0]
    assert first["algorithm.lopti_eta"] == 0
    assert first.get("algorithm.ar_alpha", 0) == 0
    assert first.get("algorithm.advantage", "grpo") == "grpo"


@pytest.mark.parametrize(
    ("name", "configurations", "trials"),
    [
        ("knights_knaves_3b", 8 + 8, 48),
        ("knights_knaves_7b", 8 + 4, 36),
        ("knights_knaves_3b_lora", 5 + 11, 48),
        ("math_7b", 4 + 6, 20),
        ("ablation_order", 5, 15),
        ("ablation_filters", 4, 12),
        ("alpha_eta_grid", 5 * 4, 40),
        ("quickstart", 8, 8),
        ("update_rules", 24, 72),
        ("hard_puzzles", 5, 80),
        ("rules_3b", 24, 72),
    ],
)
def test_sizes(name, configurations, trials):
    spec = load_space(PUBLISHED[name])
    assert planned_trials(spec) == trials == configurations * len(spec.seeds)


@pytest.mark.parametrize("name", ["knights_knaves_3b", "knights_knaves_7b"])
def test_the_baselines_are_the_rows_of_the_table(name):
    rows = {tuple(row.values()) for row in baselines(load_space(PUBLISHED[name]))}
    # Advantage, alpha, eta: GRPO of figure 4, REINFORCE++ of table 7 with an alpha of its own.
    assert rows == {
        *itertools.product(["grpo"], [0.0, 0.3], [0.0, 0.5]),
        *itertools.product(["reinforce_plus_plus"], [0.0, 0.1], [0.0, 0.5]),
    }


def test_mathematics_never_combines_both_methods():
    space = load_space(PUBLISHED["math_7b"])
    corners = Space(space.parameters).grid(lambda parameter: parameter.extremes)
    resolved = [Space(space.parameters).resolve(point, space.base) for point in corners]
    assert {(row["algorithm.ar_alpha"] > 0, row["algorithm.lopti_eta"] > 0) for row in resolved} == {
        (False, False),
        (True, False),
        (False, True),
    }


def test_the_arms_of_the_order_ablation():
    arms = {tuple(row.values()) for row in resolved_grid(load_space(PUBLISHED["ablation_order"]))}
    assert arms == {  # eta, order, split, epochs
        (0.0, "low_first", "probability", 1),
        (0.5, "low_first", "probability", 1),
        (0.5, "high_first", "probability", 1),
        (0.5, "low_first", "random", 1),
        (0.0, "low_first", "probability", 2),
    }


def test_the_arms_of_the_filter_ablation():
    arms = {tuple(row.values()) for row in resolved_grid(load_space(PUBLISHED["ablation_filters"]))}
    assert arms == {(0.0, "none"), (0.5, "none"), (0.5, "drop_high"), (0.5, "drop_low")}


def test_the_two_by_two_is_part_of_the_grid():
    spec = load_space(PUBLISHED["alpha_eta_grid"])
    grid = resolved_grid(spec)
    assert len(grid) == 20
    assert all(row in grid for row in baselines(spec))
    small = load_space(PUBLISHED["alpha_eta_grid"], ["search.configurations=0"])
    assert planned_trials(small) == 4 * 2


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_space_plans(name, tmp_path, capsys):
    assert main(["plan", str(PUBLISHED[name]), "--runs-dir", str(tmp_path)]) == 0
    assert "trials " in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_GPUS)  # the quickstart space runs as it is
def test_every_space_runs_shrunken(name: str, tiny_policy: Path, tmp_path: Path) -> None:
    """All baselines, one proposal and every arm of an ablation really train, and every trial ends COMPLETE."""
    proposed = {"ablation_order": 3, "ablation_filters": 2}.get(name, 1)
    code = main(
        [
            *("run", str(PUBLISHED[name]), f"trainer.model.name_or_path={tiny_policy}"),
            # One at a time: a trial of two steps is over sooner than another rank has started.
            *(f"search.configurations={proposed}", "limits.max_concurrent=1"),
            *("--shrink", "--offline", "--cpus", "2", "--runs-dir", str(tmp_path)),
        ]
    )
    assert code == 0
    folder, spec = tmp_path / f"{name}-shrunk", load_space(PUBLISHED[name])
    ended = results(folder)
    assert [result["state"] for result in ended.values()] == ["COMPLETE"] * (len(spec.baselines) + proposed)
    expected = baselines(spec)
    for number, row in enumerate(expected):
        trial = f"c{number:03d}-s{spec.seeds[0]}"
        config = yaml.safe_load((folder / "trials" / trial / "config.yaml").read_text())
        assert config["model"]["lora"] == spec.base.model.lora.model_dump()
        for key, value in row.items():
            section, field = key.split(".")
            assert config[section][field] == value
        evaluated = [line["step"] for line in metrics(folder, trial) if "eval/accuracy" in line]
        assert evaluated == [0, 1, 2]
