"""The presets against the settings of arXiv:2505.12929 (tables 2 and 3) and its published
scripts.
"""

import re

import pytest

from tests.paths import ROOT
from trainer.config.extends import find_spec, preset_names, variant_names
from trainer.config.schema import load_config

PAGE = ROOT / "docs" / "results" / "paper.md"

# Table 2 by our names, K&K and mathematics; the single values that it gives without a column hold
# for both.
TABLE_2 = {
    "rollout.temperature": (0.7, 1.0),  # sampling temperature
    "rollout.prompts_per_step": (64, 128),  # question num per batch
    "rollout.group_size": (8, 8),  # answer num per question
    "rollout.max_new_tokens": (4096, 4096),  # max tokens num per response
    "optim.update_batch_size": (256, 512),  # update batch size
    "optim.lr": (1e-6, 1e-6),  # of AdamW
    "algorithm.kl_coef": (0.001, 0.001),  # KL divergence coefficient
    "algorithm.loss.clip_ratio_low": (0.2, 0.2),
    "algorithm.loss.clip_ratio_high": (0.24, 0.24),
}
# What the text says besides: a checkpoint every 20 steps, the last three averaged, 5 epochs, one
# seed.
TEXT = {
    "checkpoint.every_steps": 20,
    "checkpoint.keep_last": 3,
    "evaluation.every_steps": 20,
    "epochs": 5,
    "max_steps": None,
}
# "All other hyperparameters adhere to the default settings provided by verl" and the published
# scripts.
SCRIPTS = {
    "rollout.top_p": 1.0,
    "rollout.top_k": 0,
    "algorithm.loss.dual_clip": 10.0,
    "algorithm.loss_aggregation": "token_mean",
    "algorithm.kl_estimator": "k3",
    "algorithm.update_epochs": 1,
    "algorithm.lopti_order": "low_first",
    "algorithm.token_filter": "none",
    "algorithm.rollout_correction": None,
    "optim.lr_schedule": "constant",
    "optim.warmup_steps": 0,
    "optim.betas": (0.9, 0.999),
    "optim.weight_decay": 0.01,
    "optim.max_grad_norm": 1.0,
    "evaluation.at_start": True,
    "evaluation.temperature": 0.0,
    "data.drop_last": True,
}
KNIGHTS_KNAVES = {key: values[0] for key, values in TABLE_2.items()} | {
    "data.task": "knights_knaves",
    "data.max_prompt_tokens": 400,
    "reward.functions": {"knights_knaves": 1.0},
}
MATH = {key: values[1] for key, values in TABLE_2.items()} | {
    "data.task": "math",
    "data.max_prompt_tokens": 1024,
    "data.prompt_format": "raw",  # "no instruction-following templates are employed"
    "reward.functions": {"math": 1.0},
}
MODELS = {
    "kk_3b": ("Qwen/Qwen2.5-3B-Instruct", KNIGHTS_KNAVES),
    "kk_7b": ("Qwen/Qwen2.5-7B-Instruct-1M", KNIGHTS_KNAVES),
    "math_7b": ("Qwen/Qwen2.5-7B", MATH),
}
# Table 3. It has one alpha for K&K, GRPO's; that of REINFORCE++ (appendix D.2) is a
# transcription's.
ALPHA = {("kk", "grpo"): 0.3, ("kk", "rpp"): 0.1, ("math", "grpo"): 0.1, ("math", "rpp"): 0.1}
ETA = 0.5
ESTIMATORS = {"grpo": "grpo", "rpp": "reinforce_plus_plus"}
METHODS = {
    "": (False, False),
    "ar": (True, False),
    "lopti": (False, True),
    "ar_lopti": (True, True),
}
# Variants with the values of the published scripts, and the other training set of table 1.
SCRIPTS_VALUES = {"": (0.0, 0.0), ":ar": (0.2, 0.0), ":lopti": (0.0, 0.4), ":ar_lopti": (0.3, 0.5)}
ORZ_VARIANTS = {"orz": (0.0, 0.0), "orz_ar": (0.1, 0.0), "orz_lopti": (0.0, 0.5)}
PAPER = [
    (model, estimator, method)
    for model in MODELS
    for estimator in ESTIMATORS
    for method in METHODS
    # the paper joins the two on Knights and Knaves only
    if (model, method) != ("math_7b", "ar_lopti")
]


def value(config, key):
    for part in key.split("."):
        config = getattr(config, part)
    return config


@pytest.mark.parametrize(("model", "estimator", "method"), PAPER)
def test_every_experiment_is_a_preset_with_the_papers_values(model, estimator, method):
    variant = "_".join(part for part in (estimator.replace("grpo", ""), method) if part)
    config = load_config(f"{model}:{variant}" if variant else model)
    start, settings = MODELS[model]
    reweighted, isolated = METHODS[method]
    expected = (
        SCRIPTS
        | TEXT
        | settings
        | {
            "model.name_or_path": start,
            "algorithm.advantage.name": ESTIMATORS[estimator],
            "algorithm.kl_in_loss": estimator == "grpo",
            "algorithm.ar_alpha": ALPHA[model.split("_")[0], estimator] if reweighted else 0.0,
            "algorithm.lopti_eta": ETA if isolated else 0.0,
        }
    )
    assert {key: value(config, key) for key in expected} == expected


@pytest.mark.parametrize("model", MODELS)
def test_the_variants_are_the_papers_experiments_and_no_others(model):
    experiments = {(estimator, method) for name, estimator, method in PAPER if name == model} - {
        ("grpo", "")
    }
    names = {"_".join(part for part in (e.replace("grpo", ""), m) if part) for e, m in experiments}
    names |= set(ORZ_VARIANTS if model == "math_7b" else ())
    assert set(variant_names(model)) == names


@pytest.mark.parametrize("variant", SCRIPTS_VALUES)
def test_script_variants_have_the_values_and_evaluations_of_the_published_scripts(variant):
    config = load_config(f"kk_scripts{variant}")
    algorithm = config.algorithm
    assert (algorithm.ar_alpha, algorithm.lopti_eta) == SCRIPTS_VALUES[variant]
    assert {key: value(config, key) for key in SCRIPTS} == SCRIPTS
    assert list(config.evaluation.sets) == ["puzzles", "amc", "aime"]
    for name in ("amc", "aime"):
        section = config.evaluation.of_set(name)
        assert (section.completions_per_problem, section.temperature) == (16, 1.0)
        assert (config.data_of_set(name).task, config.reward_of_set(name)) == (
            "math",
            {"math": 1.0},
        )
        assert config.data_of_set(name).prompt_format == "raw"
    assert config.reward_of_set("puzzles") == {"knights_knaves": 1.0}


@pytest.mark.parametrize("variant", ORZ_VARIANTS)
def test_orz_variants_train_one_epoch_on_the_published_file(variant):
    config = load_config(f"math_7b:{variant}")
    (train,) = config.data.train
    assert train.source == "AR-Lopti/data/orz_math/orz_math_57k.parquet"
    assert config.epochs == 1
    assert (config.algorithm.ar_alpha, config.algorithm.lopti_eta) == ORZ_VARIANTS[variant]
    assert config.evaluation == load_config("math_7b").evaluation


@pytest.mark.parametrize("name", [*MODELS, "kk_scripts", "tiny_kk"])
def test_the_checkpoints_that_last_3_evaluates_are_kept(name):
    assert load_config(name).checkpoint.keep_last >= 3


def test_training_takes_900_puzzles_per_size_evaluation_the_test():
    config = load_config("kk_3b")
    (train,) = config.data.train
    (test,) = config.evaluation.sets.values()
    assert (
        (train.source, train.name)
        == (test.source, "train")
        == ("K-and-K/knights-and-knaves", "train")
    )
    assert train.split == "+".join(f"{people}ppl[:900]" for people in range(3, 8))
    assert (test.name, test.split) == ("test", "+".join(f"{people}ppl" for people in range(3, 8)))


@pytest.mark.parametrize("name", preset_names())
def test_the_first_line_describes_the_preset(name):
    first = find_spec(name).path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith(".")
    assert len(first) < 115


def test_the_papers_page_names_every_script_and_experiment():
    text = PAGE.read_text(encoding="utf-8")
    scripts = set(re.findall(r"python -m examples\.paper\.(\w+)", text))
    folder = ROOT / "examples" / "paper"
    assert scripts == {path.stem for path in folder.glob("*.py")} - {"__init__", "diagnose_rules"}
    rows = re.findall(r"`((?:kk|math)_[a-z0-9_.:]+)`", text)
    commands = re.findall(r"`trainer run (kk_scripts[a-z_:]*)`", text)
    assert {name.removeprefix("kk_scripts") for name in commands} == set(SCRIPTS_VALUES)
    assert {load_config(row).algorithm.advantage.name for row in rows if ":rpp" not in row} == {
        "grpo"
    }
    every = {f"{model}:{variant}" for model in MODELS for variant in variant_names(model)} | set(
        MODELS
    )
    # not in the paper
    assert set(rows) == every - {"math_7b:rpp", "math_7b:rpp_ar", "math_7b:rpp_lopti"}
