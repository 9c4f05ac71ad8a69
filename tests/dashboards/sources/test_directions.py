"""Whether larger or smaller scores are better."""

import pandas as pd
import pytest

from dashboards import judge
from dashboards.sources.directions import DIRECTION, direction, usual_direction
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
    assert usual_direction(name, None) == mode


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
