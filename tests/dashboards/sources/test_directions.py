"""Whether larger or smaller scores are better."""

import pandas as pd
import pytest

from dashboards import judge
from dashboards.sources.directions import (
    DIRECTION,
    direction,
    direction_by_name,
    read_direction,
    usual_direction,
)
from dashboards.sources.scores import guards_of, parse_second
from tests.dashboards.test_judging import ASKED, runs
from tests.refusals import refused

SMALLER = (
    "loss", "val/loss", "eval_loss", "test-error", "RMSE", "mse", "nll", "perplexity", "valPPL",
    "bpb", "regret", "FID", "wer", "CER", "log_loss", "latency", "top1_err", "brier", "ece", "cost",
    "mean_absolute_error", "steps_to_90", "time to solve", "avg_rank", "toxicity", "failure_rate",
    "generalization_gap", "val_loss/dataloader_idx_0", "loss.mean", "eval/scoring_failures",
    "truncated",
)  # fmt: skip


@pytest.mark.parametrize("name", SMALLER)
def test_a_name_that_speaks_for_smaller_is_asked_about(name):
    with refused("which-direction", names=["--mode min"]):
        direction(name, None, None)
    assert direction(name, "max", None) == ("max", [])


@pytest.mark.parametrize(
    ("name", "mode"),
    [("steps_to_90", "min"), ("avg_rank", "min"), ("completions", "min"), ("tokens", "min"),
     ("length", "min"), ("accuracy", "max"), ("cost_reduction", "max"), ("latency.p99", "min"),
     ("eval/completion_length/hard", "min"), ("eval/truncated", "min"),
     ("eval/truncated/hard", "min"), ("eval/accuracy/error_corpus", "max"),
     ("tokens/accuracy", "max"), ("errors/f1", "max"), ("train_samples_per_second", "max"),
     ("perf/tokens_per_sec_per_gpu", "max"), ("tokens/s", "max"), ("seconds_per_step", "min"),
     ("errors_per_second", "min"), ("usd_per_hour", "min")],
)  # fmt: skip
def test_guards_and_second_objectives_take_the_usual_direction(name, mode):
    assert usual_direction(name, None, "--guard", "") == mode


# names that TRL, verl, Stable-Baselines3, scikit-learn, lm-eval, Hugging Face evaluate, Keras,
# XGBoost and Ultralytics log
LARGER_NAMES = """
    accuracy eval_accuracy mean_token_accuracy rewards/accuracies rewards/margins rewards/chosen
    reward rewards/accuracy_reward/mean objective/rlhf_reward objective/scores
    val-core/openai/gsm8k/reward/mean@1 val/test_score/openai/gsm8k critic/score/mean
    critic/vf_explained_var perf/throughput perf/mfu/actor val-core/math/acc/maj@8/mean
    rollout/ep_rew_mean episode_reward_mean charts/episodic_return success_rate win_rate
    balanced_accuracy top_k_accuracy average_precision neg_brier_score f1_micro f1_samples
    neg_log_loss jaccard roc_auc_ovr d2_log_loss_score d2_absolute_error_score explained_variance r2
    neg_max_error neg_mean_squared_error neg_mean_squared_log_error neg_mean_poisson_deviance
    adjusted_rand_score positive_likelihood_ratio neg_negative_likelihood_ratio mean_test_score
    acc,none acc_norm,none exact_match,strict-match bleu pass@1 chrf rouge1 rougeL bertscore_f1
    matthews_correlation HasAns_f1 mean_iou sparse_top_k_categorical_accuracy precision_at_recall
    true_positives true_negative_rate cosine_similarity mean_io_u aucpr ndcg mean_reciprocal_rank
    mAP50-95(B) train_samples_per_second perf/tokens_per_sec_per_gpu
    negative_mse log_likelihood negative_predictive_value cost_reduction loss_improvement
    accuracy_gain false_positive_reduction inverse_perplexity cost_savings
"""
SMALLER_NAMES = """
    loss eval_loss val-loss train/value_loss actor/pg_loss actor/kl_loss critic/vf_loss
    neg_log_likelihood negative_log_likelihood minus_log_likelihood nll neg_accuracy one_minus_ssim
    false_negative_rate false_positive_rate false_discovery_rate false_positives fpr fnr
    negative_likelihood_ratio log_loss max_error mean_squared_error mean_gamma_deviance
    rank_test_score brier_score,none word_perplexity,none bits_per_byte,none wer TER toxicity_ratio
    mean_perplexity perplexities smape mean_squared_logarithmic_error kl_divergence log_cosh
    binary_crossentropy squared_hinge cross_entropy merror mlogloss poisson-nloglik steps_to_90
    avg_rank errors_per_second accuracy_drop accuracy_degradation miss_rate eval/truncated
    eval/scoring_failures reward/timeouts reward/errors reward/format_failures
"""
UNCLEAR_NAMES = """
    reward_std rewards/accuracy_reward/std frac_reward_zero_std critic/rewards/std
    rollout/reward_std acc_stderr,none std_test_score loss_std accuracy_var variance standard_error
    val-core/gsm8k/acc/std@8 mean_absolute_deviation logps/rejected rewards/rejected
    objective/non_score_reward negative_recall negative_reward negative_samples neg_foo
    episode_length completions/mean_length response_length/mean objective/kl objective/entropy
    policy/entropy fit_time score_time timing_s/step num_tokens
"""
UNKNOWN_NAMES = """
    grad_norm learning_rate my_metric lossless clip_ratio/region_mean policy/clip_fraction y value
    mc1 dropout
"""


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (LARGER_NAMES, "max"),
        (SMALLER_NAMES, "min"),
        (UNCLEAR_NAMES, "unclear"),
        (UNKNOWN_NAMES, None),
    ],
)
def test_names_of_real_programs_are_read(names, expected):
    readings = {name: read_direction(name) for name in names.split()}
    assert readings == dict.fromkeys(readings, expected)


def test_an_unclear_name_is_asked_about():
    with refused("which-direction", names=["reward_std", "--mode min"]):
        direction("reward_std", None, None)
    with refused("which-direction", names=["reward_std:0.1:min"]):
        guards_of("reward_std:0.1")
    with refused("which-direction", names=["reward_std", "--second reward_std:min"]):
        parse_second("reward_std")
    assert parse_second("reward_std:min").mode == parse_second("tokens").mode == "min"
    assert direction_by_name("reward_std") is None
    assert guards_of("reward_std:0.1:max")[0].mode == "max"


def test_lengths_and_counts_are_unclear_as_scores_and_costs_as_guards():
    for name in ("completion_length", "score_time", "num_tokens", "tokens_per_correct"):
        assert read_direction(name) == "unclear"
        assert read_direction(name, costs_are_smaller=True) == "min"
    # a number of something only counts a quantity that should be large
    for name in ("episode_reward", "mean_token_accuracy", "f1_samples"):
        assert read_direction(name, costs_are_smaller=True) == "max"


def test_a_verdict_on_a_loss_asks_first():
    with refused("which-direction"):
        judge(runs().rename(columns={"acc": "val_loss"}), **{**ASKED, "score": "val_loss"})


@pytest.mark.parametrize(
    "name", ["accuracy", "return", "neg_mean_squared_error", "lossless", "r2", "rank_accuracy"]
)
def test_other_names_are_larger_is_better(name):
    assert direction(name, None, None) == ("max", [])


def test_a_study_says_it(tmp_path):
    table = pd.DataFrame(runs())
    table.attrs[DIRECTION] = "min"
    judged = judge(table, **ASKED)
    assert judged.results.objective.mode == "min" and judged.arms[-1].name.endswith("dapo")
    assert judge(table, mode="max", **ASKED).results.objective.mode == "max"
