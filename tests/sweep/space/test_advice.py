from pathlib import Path

import pytest

from loptune.errors import MissingError
from sweep.space.advice import advise_space
from sweep.space.file import find_space, load_space
from tests.refusals import refused
from tests.sweep.harness import write_space
from tests.sweep.programs.scripts import SPACE


def test_the_published_spaces_need_none():
    for name in ("quickstart", "knights_knaves_3b", "ablation_filters"):
        assert list(advise_space(load_space(find_space(name)))) == []


@pytest.mark.parametrize(
    ("key", "is_seed"),
    [
        ("random_state", True),
        ("train.seed", True),
        ("seed_everything", True),
        ("seedling", False),
        ("initial_state", False),
    ],
)
def test_a_searched_seed_is_advised_against(tmp_path, key, is_seed):
    program = {"command": ["true", f"{{{key}}}"], "defaults": {key: 1}}
    parameters = {key: {"int": [0, 9]}}
    space = write_space(
        tmp_path / "space.yaml", SPACE, program=program, parameters=parameters, baselines=[]
    )
    advised = [advice.where for advice in advise_space(load_space(space))]
    assert (f"parameters.{key}" in advised) == is_seed


def test_a_window_longer_than_a_trial():
    (advice,) = advise_space(load_space(find_space("quickstart"), ["objective.window=30"]))
    assert " 30 " in advice.what and " 5" in advice.what


@pytest.mark.parametrize(
    ("problems", "completions", "advised"), [(8, 1, True), (8, 8, False), (64, 1, False)]
)
def test_scores_that_move_in_steps_as_large_as_what_counts(problems, completions, advised):
    sets = f"trainer.evaluation.sets={{dev: {{split: dev, size: {problems}, people: [2]}}}}"
    changes = [
        sets,
        f"trainer.evaluation.completions_per_problem={completions}",
        "trainer.evaluation.temperature=1",
        "objective.window=1",
        "objective.worthwhile=0.02",
    ]
    space = load_space(find_space("quickstart"), changes)
    assert space.program.score_step("eval/accuracy") == 1 / (problems * completions)
    assert [advice.where for advice in advise_space(space)] == ["objective.worthwhile"] * advised


def test_a_baseline_outside_of_what_is_searched():
    baseline = "{algorithm.advantage: grpo, algorithm.ar_alpha: 0.9, lopti: false}"
    (advice,) = advise_space(load_space(find_space("quickstart"), [f"baselines=[{baseline}]"]))
    assert "baseline 0" in advice.what and "ar_alpha" in advice.what and "[0.0, 0.5]" in advice.what


def test_advice_on_the_run_unless_the_sweep_searches_the_key():
    odd = "trainer.rollout.prompts_per_step=13"  # 104 completions, 48 in an optimizer step
    (advice,) = advise_space(load_space(find_space("quickstart"), [odd]))
    assert advice.where == "optim.update_batch_size"
    searched = "parameters.optim.update_batch_size={choice: [52, 104]}"
    space = load_space(find_space("quickstart"), [odd, searched, "baselines=[]"])
    assert list(advise_space(space)) == []


def test_a_published_space_is_found_by_its_name():
    assert find_space("quickstart").name == find_space("quickstart.yaml").name == "quickstart.yaml"
    with refused("no-search-space", MissingError, names=("quickstat",)) as caught:
        find_space("quickstat")
    assert "quickstart" in caught.value.hint


def test_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart.yaml").touch()
    assert find_space("quickstart.yaml") == Path("quickstart.yaml")
    assert find_space("spaces/absent.yaml") == Path("spaces/absent.yaml")


@pytest.mark.parametrize(
    ("metric", "mode", "advised"),
    [
        ("eval/accuracy", "min", "max"),
        ("eval/mean_reward", "min", "max"),
        ("eval/pass@4", "min", "max"),
        ("val/loss", "max", "min"),
        ("eval/error_rate", "max", "min"),
        ("eval/accuracy", "max", ""),
        ("val/loss", "min", ""),
        ("seconds", "min", ""),
        ("accuracy_loss", "min", ""),
        ("losses_of_games", "max", "min"),
        ("eval/f1", "min", "max"),
        ("val_loss/dataloader_idx_0", "max", "min"),
        ("negative_log_loss", "max", ""),
        ("quality", "min", ""),
    ],
)
def test_a_direction_that_the_metrics_name_contradicts(metric, mode, advised, tmp_path):
    space = write_space(tmp_path / "space.yaml", SPACE, objective={"metric": metric, "mode": mode})
    hints = [advice.hint for advice in advise_space(load_space(space)) if "mode" in advice.where]
    assert [hint.split()[2] for hint in hints] == ([advised] if advised else [])
