"""Every metric the trainer logs: its name, formula, unit and how values of several ranks become
one.
"""

from dataclasses import dataclass
from typing import Literal

Reduction = Literal["mean", "sum", "max"]

# of a run's MLflow record: what evaluations and training sampled
COMPLETIONS_TABLE = "completions.json"


@dataclass(frozen=True)
class Metric:
    """Declaration of one metric."""

    name: str
    formula: str
    unit: str
    reduction: Reduction = "mean"


# Of metrics that need a forward of the policy before the update.
_RECOMPUTED = "; absent with optim.old_logprobs rollout"

_DECLARED = [
    Metric("rollout/reward", "mean reward of the step's completions", "reward"),
    Metric(
        "rollout/reward_std",
        "mean over groups of the reward's standard deviation in the group",
        "reward",
    ),
    Metric("rollout/accuracy", "share of completions whose answer is correct", "share"),
    Metric("rollout/completion_length", "mean tokens of a completion", "tokens"),
    Metric("rollout/truncated", "share of completions ended by max_new_tokens", "share"),
    Metric(
        "rollout/dropped_groups",
        "sampled groups of the step that were not trained on: without spread or beyond the batch",
        "groups",
    ),
    Metric(
        "rollout/silent_groups",
        "share of groups in which all rewards are equal (in TRL: frac_reward_zero_std)",
        "share",
    ),
    Metric(
        "rollout/engine_logprob_diff",
        f"mean |rollout_logprob - old_logprob| over completion tokens{_RECOMPUTED}",
        "nats",
    ),
    Metric(
        "rollout/engine_logprob_diff_max",
        f"max |rollout_logprob - old_logprob|{_RECOMPUTED}",
        "nats",
        "max",
    ),
    Metric(
        "rollout/engine_ratio",
        f"mean engine ratio exp(old_logprob - rollout_logprob) over completion tokens{_RECOMPUTED}",
        "1",
    ),
    Metric(
        "rollout/sync_difference",
        "mean |logprob of vLLM - logprob of the policy| over a prompt's tokens, after the first "
        "sync",
        "nats",
    ),
    Metric(
        "rollout/importance_cut",
        "share of completion tokens whose engine correction is capped (token level) or 0 (sequence "
        f"level){_RECOMPUTED}",
        "share",
    ),
    Metric(
        "reward/timeouts", "share of completions whose scoring hit a time or memory limit", "share"
    ),
    Metric("reward/errors", "share of completions whose scoring raised", "share"),
    Metric(
        "reward/format_failures", "share of completions whose answer could not be parsed", "share"
    ),
    Metric("policy/loss", "mean over optimizer steps of the total loss (policy + KL term)", "1"),
    Metric(
        "policy/kl", "mean over completion tokens of the KL estimate against the reference", "nats"
    ),
    Metric("policy/approx_kl", "mean over updated tokens of old_logprob - logprob", "nats"),
    Metric(
        "policy/entropy",
        f"mean entropy of the next-token distribution at completion tokens{_RECOMPUTED}",
        "nats",
    ),
    Metric("policy/clip_fraction", "share of updated tokens whose surrogate is clipped", "share"),
    Metric("policy/dual_clip_fraction", "share of updated tokens held by the dual clip", "share"),
    Metric("policy/ratio_max", "largest importance ratio met in the step", "1", "max"),
    Metric(
        "policy/low_token_share", "share of completion tokens with exp(old_logprob) < eta", "share"
    ),
    Metric(
        "optim/grad_norm", "mean over optimizer steps of the gradient norm before clipping", "1"
    ),
    Metric("optim/lr", "learning rate of the step", "1"),
    Metric("optim/updates", "optimizer steps taken in the step", "count", "sum"),
    Metric(
        "optim/updates_skipped",
        "update batches of a pass without a gradient: no optimizer step",
        "count",
        "sum",
    ),
    Metric(
        "update/tokens_computed",
        "positions that the model ran on in all passes, with padding",
        "tokens",
        "sum",
    ),
    Metric("time/rollout", "seconds spent sampling", "s", "max"),
    Metric("time/reward", "seconds spent waiting for scores", "s", "max"),
    Metric("time/logprobs", "seconds spent on old and reference log-probabilities", "s", "max"),
    Metric("time/update", "seconds spent in optimizer steps", "s", "max"),
    Metric("time/sync", "seconds spent handing the weights to the rollout engine", "s", "max"),
    Metric("time/step", "seconds of the whole step without evaluation", "s", "max"),
    Metric("time/evaluation", "seconds of the evaluation", "s", "max"),
    Metric("time/diagnostics", "seconds spent on tokens/*", "s", "max"),
    Metric(
        "memory/peak",
        "memory of the fullest GPU in use after the update, torch's cache included",
        "GB",
        "max",
    ),
    Metric("time/tokens_per_s", "completion tokens of the step / time/step", "tokens/s", "sum"),
    Metric("eval/accuracy", "share of correct completions on the first evaluation set", "share"),
    Metric("eval/reward", "mean reward on the first evaluation set", "reward"),
    Metric("eval/completion_length", "mean tokens of an evaluation completion", "tokens"),
    Metric("eval/truncated", "share of evaluation completions ended by max_new_tokens", "share"),
    Metric(
        "eval/pass_at_k",
        "share of the first evaluation set's problems that one of their k completions solves",
        "share",
    ),
    Metric(
        "eval/scoring_failures",
        "share of evaluation completions whose scoring timed out or raised",
        "share",
    ),
    Metric("eval/accuracy_low", "lower end of eval/accuracy's 95% interval over problems", "share"),
    Metric(
        "eval/accuracy_high", "upper end of eval/accuracy's 95% interval over problems", "share"
    ),
    Metric("final/best_accuracy", "largest eval/accuracy of the run", "share", "max"),
    Metric("final/best_step", "training step of final/best_accuracy", "step", "max"),
    Metric("final/accuracy", "mean of the last three eval/accuracy", "share"),
    Metric(
        "final/silent_steps",
        "steps in which all completions of every prompt had one reward",
        "share",
    ),
    Metric(
        "final/score",
        "score the sweep gave the trial: mean of the objective's last evaluations",
        "1",
    ),
]

METRICS: dict[str, Metric] = {metric.name: metric for metric in _DECLARED}

# Families whose last part comes from the data or the configuration.
METRIC_FAMILIES: dict[str, Metric] = {
    metric.name: metric
    for metric in [
        Metric(
            "eval/accuracy/",
            "eval accuracy of one difficulty, or of a further set as SET or SET.DIFFICULTY",
            "share",
        ),
        Metric("eval/reward/", "eval/reward of a further set", "reward"),
        Metric("eval/completion_length/", "eval/completion_length of a further set", "tokens"),
        Metric("eval/truncated/", "eval/truncated of a further set", "share"),
        Metric(
            "eval/pass_at_k/",
            "eval/pass_at_k of a further set with several completions per problem",
            "share",
        ),
        Metric(
            "tokens/token_share/",
            "share of completion tokens with exp(old_logprob) in the band",
            "share",
        ),
        Metric("tokens/advantage_share/", "sum of |A| in the band / sum of |A|", "share"),
        Metric(
            "tokens/gradient_share/",
            f"sum in the band of |A| * |d logprob / d logits| / sum over all tokens{_RECOMPUTED}",
            "share",
        ),
        Metric("tokens/entropy/", f"mean entropy in the band{_RECOMPUTED}", "nats"),
        Metric("tokens/kl/", "mean KL estimate against the reference in the band", "nats"),
        Metric(
            "tokens/clip_fraction/",
            "share of the band's updated tokens whose surrogate is clipped",
            "share",
        ),
        Metric("reward/component/", "mean of one part of the reward", "reward"),
    ]
}


def declaration(name: str) -> Metric:
    """Return the declaration of a logged name.

    Raises:
        KeyError: the name was never declared.
    """
    if name in METRICS:
        return METRICS[name]
    for prefix, metric in METRIC_FAMILIES.items():
        if name.startswith(prefix) and len(name) > len(prefix):
            return metric
    raise KeyError(f"metric {name} is not declared in trainer/metrics/declared.py")
