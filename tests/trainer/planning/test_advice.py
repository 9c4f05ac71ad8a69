import pytest

from loptune.errors import ConfigError
from tests.refusals import refused
from trainer.config.schema import load_config
from trainer.planning.advice import advise, advise_data
from trainer.types import Problem


def advice(*overrides):
    return {given.where: given.what for given in advise(load_config("base", overrides))}


def problems(ids):
    return [Problem(problem_id, "", "", "", "") for problem_id in ids]


def test_base_needs_no_advice():
    assert advice() == {}
    assert list(advise_data(load_config("base"), problems("x" * 32), {}, context=1536)) == []


@pytest.mark.parametrize(
    ("override", "where", "message"),
    [
        ("rollout.group_size=1", "rollout.group_size", "grpo"),
        ("rollout.prompts_per_step=40", "optim.update_batch_size", "320"),
        ("model.lora.r=8", "optim.lr", "1e-06"),
        ("reward.functions={math: -1.0, format: 0.5}", "reward.functions", "math"),
        ("data.prompt_template='{question} {other}'", "data.prompt_template", "{other}"),
        ("data.system_prompt='Solve {question}'", "data.system_prompt", "{question}"),
    ],
)
def test_what_is_seldom_meant_is_said(override, where, message):
    by_key = advice(override)
    assert list(by_key) == [where] and message in by_key[where]


@pytest.mark.parametrize(
    "override",
    [
        "algorithm.advantage=reinforce_plus_plus",
        "rollout.prompts_per_step=8",  # fewer completions than an optimizer step may take
        "rollout.prompts_per_step=64",
        r"data.prompt_template='{question} Write \boxed{answer} and {{json}}.'",
    ],
)
def test_what_is_common_is_not(override):
    group = ["rollout.group_size=1"] if "reinforce" in override else []
    assert advice(override, *group) == {}


def test_data_and_model_are_compared_with_the_settings():
    few, short = advise_data(
        load_config("base", ["rollout.prompts_per_step=5000"]), problems("x" * 200), {}, 1024
    )
    assert all(number in few.what for number in ("5000", "200", "25"))
    assert all(number in short.what for number in ("512", "1024"))
    assert str(few).splitlines()[1:] == [
        "where:   rollout.prompts_per_step",
        "next:    lower it to at most 200, or add data",
    ]


@pytest.mark.parametrize(
    ("limits", "at_fault"),
    [
        (["evaluation.max_new_tokens=4096"], ["evaluation.max_new_tokens"]),
        (
            ["rollout.max_new_tokens=2000", "evaluation.sets.dev.max_new_tokens=100"],
            ["rollout.max_new_tokens"],
        ),
        (
            ["evaluation.max_new_tokens=100", "evaluation.sets.dev.max_new_tokens=2000"],
            ["evaluation.sets.dev.max_new_tokens"],
        ),
        (
            ["rollout.max_new_tokens=2000", "evaluation.max_new_tokens=3000"],
            ["rollout.max_new_tokens", "evaluation.max_new_tokens"],
        ),
    ],
)
def test_the_key_whose_completions_exceed_the_context_is_named(limits, at_fault):
    small = ["data.max_prompt_tokens=100", "rollout.max_new_tokens=100"]
    config = load_config("base", [*small, *limits])
    (warning,) = advise_data(config, problems("x" * 200), {}, 1024)
    assert warning.where.split(", ") == ["data.max_prompt_tokens", *at_fault]
    longest = config.longest_completion
    assert f"100 + max_new_tokens {longest} exceeds" in warning.what


def test_rewards_that_all_weigh_nothing_are_refused():
    with refused("all-weights-zero", ConfigError):
        load_config("base", ["reward.functions={math: 0.0}"])


def test_problems_that_are_trained_on_and_evaluated_are_counted():
    sets = {"dev": problems("bxc"), "test": problems("y")}
    (warning,) = advise_data(load_config("base"), problems("abc" * 20), sets, context=None)
    assert warning.what.startswith("2 of 3 problems")
    assert warning.where == "evaluation.sets.dev"
