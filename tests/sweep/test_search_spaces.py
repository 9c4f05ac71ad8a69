"""The published search spaces: what they plan, and that those of every kind train."""

import itertools

import pytest

from sweep.record.sweep_record import planned_trials
from sweep.space.file import load_space
from sweep.space.points import Space
from tests.paths import ROOT
from tests.sweep.search.instant_sweeps import drain, ended, searcher_in
from trainer.config.schema import apply_overrides, value_of
from trainer.loop import Trainer
from trainer.types import RunContext

BESIDE_RULES = ROOT / "examples" / "rules"
SPACES = [*sorted((ROOT / "search_spaces").glob("*.yaml")), *sorted(BESIDE_RULES.glob("*.yaml"))]
PUBLISHED = {path.stem: path for path in SPACES}
ON_CPUS = (
    *(
        "quickstart",
        "update_rules",
        "hard_puzzles",
        "tournament",
        "improbable_tokens",
        "recent_rules",
        "smollm2_sums",
    ),
    "lopti_learning_rate",
)
ON_GPUS = [name for name in PUBLISHED if name not in ON_CPUS]
# One of each kind; of the others strategies are rehearsed.
SMALL = ["ablation_filters", "ablation_order", "knights_knaves_3b_lora", "math_7b"]
TINY = [
    *("trainer.preset=tiny_kk", "resources={}", "seeds=[0]", "trainer.max_steps=2"),
    # One at a time: a trial of two steps is over sooner than another rank has started.
    *(
        "limits.max_concurrent=1",
        "trainer.evaluation.every_steps=1",
        "trainer.checkpoint.every_steps=1",
    ),
    *(
        "trainer.rollout.prompts_per_step=2",
        "trainer.rollout.group_size=4",
        "trainer.optim.update_batch_size=4",
    ),
    "trainer.evaluation.sets={dev: {source: generated, split: dev, people: [2, 3], size: 8}}",
]


def resolved_grid(spec):
    space = Space(spec.parameters)
    return [
        space.resolve(point, spec.program)
        for point in space.grid(lambda parameter: parameter.options or [])
    ]


def baselines(spec):
    space = Space(spec.parameters)
    return [
        space.resolve(space.complete(baseline, spec.program), spec.program)
        for baseline in spec.baselines
    ]


@pytest.mark.parametrize("name", ON_GPUS)
def test_every_space_is_right_as_it_stands(name):
    spec = load_space(PUBLISHED[name])
    assert spec.name == name
    on_one = name.endswith("_lora")
    assert spec.resources.gpus_per_trial == spec.resources.workers_per_trial == (1 if on_one else 4)
    assert spec.trainer.base.parallel.strategy == ("none" if on_one else "deepspeed")
    assert (spec.trainer.base.model.lora.r > 0) == on_one
    assert spec.trainer.base.model.name_or_path.startswith("Qwen/")
    assert spec.objective.window == 3
    assert len(spec.seeds) >= 2
    # Plain GRPO comes first: everything is compared with it.
    first = baselines(spec)[0]
    assert first["algorithm.lopti_eta"] == 0
    assert first.get("algorithm.ar_alpha", 0) == 0
    assert first.get("algorithm.advantage", "grpo") == "grpo"


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
    resolved = [Space(space.parameters).resolve(point, space.program) for point in corners]
    assert {
        (row["algorithm.ar_alpha"] > 0, row["algorithm.lopti_eta"] > 0) for row in resolved
    } == {(False, False), (True, False), (False, True)}


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
    grid = resolved_grid(load_space(PUBLISHED["ablation_filters"]))
    arms = [
        (
            row["algorithm.lopti_eta"],
            row["algorithm.token_filter"],
            tuple(row["algorithm.filter_interval"]),
        )
        for row in grid
    ]
    kept = [(0.0, high) for high in (0.25, 0.5, 0.75)] + [(low, 1.0) for low in (0.25, 0.5, 0.75)]
    unfiltered = [(0.0, "none", (0.0, 0.5)), (0.5, "none", (0.0, 0.5))]
    filtered = [(0.0, "interval", interval) for interval in kept]
    assert sorted(arms) == sorted([*unfiltered, *filtered])


def test_the_two_by_two_is_part_of_the_grid():
    spec = load_space(PUBLISHED["alpha_eta_grid"])
    grid = resolved_grid(spec)
    assert len(grid) == 30
    assert all(row in grid for row in baselines(spec))
    small = load_space(PUBLISHED["alpha_eta_grid"], ["search.configurations=0"])
    assert planned_trials(small) == 4 * 2


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.llm] if name == "smollm2_sums" else [])
        for name in PUBLISHED
    ],
)
def test_every_space_plans(name, tmp_path, typed, monkeypatch):
    monkeypatch.syspath_prepend(BESIDE_RULES)  # rules that stand beside a space
    assert "trials " in typed("sweep plan", PUBLISHED[name], "--step-seconds", "9")
    assert list(tmp_path.iterdir()) == []


def small(name, policy):
    """Overrides that make a space small: all baselines, and one to three proposals."""
    proposed = {"ablation_order": 3, "ablation_filters": 2}.get(name, 1)
    adapter = ["trainer.model.lora.r=4"] if name.endswith("_lora") else []
    return [
        *TINY,
        *adapter,
        f"trainer.model.name_or_path={policy}",
        f"search.configurations={proposed}",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_every_configuration_of_a_space_of_every_kind_trains(name, tiny_policy, tmp_path):
    spec = load_space(PUBLISHED[name], small(name, tiny_policy))
    trials = drain(searcher_in(tmp_path, spec), result=lambda _: ended(0.5))
    assert len(trials) == planned_trials(spec) == len(spec.baselines) + spec.search.configurations
    for number, trial in enumerate(trials):
        config = apply_overrides(spec.trainer.base, trial["overrides"])
        assert config.model.lora.r == (4 if name.endswith("_lora") else 0)
        for key, value in ([*baselines(spec), *[{}] * len(trials)])[number].items():
            read = value_of(config, key)
            assert (list(read) if isinstance(read, tuple) else read) == value
        trainer = Trainer(config, RunContext.of(tmp_path / trial["trial"]))
        trainer.train()
        trainer.close()
        assert [step for step, _ in trainer.evaluations] == [0, 1, 2]
