import pytest

from tests.sweep.spaces import make_spec, parameters


@pytest.mark.parametrize(("workers", "gpus", "each"), [(4, 4, 1.0), (1, 0.5, 0.5), (2, 0, 0.0)])
def test_gpus_of_a_rank(workers, gpus, each, tmp_path):
    trainer = {"preset": "base.yaml", "overrides": {"parallel.strategy": "ddp"}}
    resources = {"workers_per_trial": workers, "gpus_per_trial": gpus}
    assert (
        make_spec(tmp_path, resources=resources, trainer=trainer).resources.gpus_per_worker == each
    )


@pytest.mark.parametrize(
    ("written", "grace"), [(None, None), ("none", None), ("asha", 3), ({"asha": None}, 3)]
)
def test_short_forms_of_the_scheduler(written, grace, tmp_path):
    scheduler = make_spec(tmp_path, scheduler=written).scheduler
    assert (scheduler.asha and scheduler.asha.grace_period) == grace


STEPS = "max_steps"


def test_values_of_trials_include_baselines_and_inactive_values_once(tmp_path):
    spec = make_spec(
        tmp_path,
        parameters=parameters(
            max_steps={"int": [10, 20]}, optim__lr={"choice": [1e-4, 1e-3], "when": {"lopti": True}}
        ),
        baselines=[{"lopti": False, STEPS: 1000}, {"lopti": False, STEPS: 20}],
    )
    values = spec.values_of_trials()
    assert values[STEPS] == [10, 20, 1000]
    assert spec.values_of_trials(listed=True)[STEPS] == [*range(10, 21), 1000]
    assert values["optim.lr"] == [1e-4, 1e-3, spec.trainer.base.optim.lr]
    assert "lopti" not in values
    assert spec.evaluations == 100


def test_values_of_trials_leave_out_parameters_that_a_rule_does_not_have(tmp_path):
    tmp_path.joinpath("sapo.yaml").write_text("algorithm: {loss: sapo}\n")
    eps = "algorithm.loss.clip_ratio_high"
    spec = make_spec(
        tmp_path,
        parameters={
            "algorithm.loss": {"choice": ["cispo", "sapo"]},
            eps: {"uniform": [1.0, 5.0], "when": {"algorithm.loss": "cispo"}},
        },
        trainer="sapo.yaml",
        baselines=[{"algorithm.loss": "sapo"}],
    )
    assert spec.values_of_trials()[eps] == [1.0, 5.0]


def test_a_space_without_a_search_has_only_the_values_of_its_baselines(tmp_path):
    spec = make_spec(
        tmp_path,
        parameters=parameters(max_steps={"int": [10, 20]}),
        baselines=[{"lopti": False, STEPS: 12}],
        search={"sampler": "random", "configurations": 0},
    )
    assert spec.values_of_trials()[STEPS] == [12]


@pytest.mark.parametrize(("baselines", "changed"), [([], False), ([{STEPS: 70}], True)])
def test_steps_are_searched_only_if_trials_differ_in_them(baselines, changed, tmp_path):
    spec = make_spec(
        tmp_path,
        parameters={
            STEPS: {"choice": [60], "when": {"algorithm.advantage": "grpo"}},
            "algorithm.advantage": {"choice": ["grpo", "reinforce_plus_plus"]},
        },
        baselines=baselines,
    )
    steps = 70 if changed else 60
    assert spec.program.steps(spec.values_of_trials()) == (steps, changed)


def test_files_of_a_baseline_are_recorded(tmp_path):
    mine = tmp_path / "mine.jsonl"
    mine.write_text("")
    spec = make_spec(
        tmp_path,
        parameters=parameters(data__train={"choice": ["generated"]}),
        baselines=[{"lopti": False, "data.train": str(mine)}],
    )
    assert mine in [path for path, _ in spec.program.files(spec.values_of_trials())]
