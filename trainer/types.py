"""Data types passed between the stages of a training step.

Shapes: B completions in the batch, T length of the longest completion, L length of the longest
prompt + completion, G group size. Stages do not modify their inputs; they return new values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rewards.score import ScoringStatus

if TYPE_CHECKING:
    from torch import Tensor as Tensor
else:
    Tensor = Any  # torch takes seconds to import, and many users of these types do not train

FinishReason = Literal["stop", "length"]
# How a microbatch's rows are computed: padded to the longest row; concatenated into one sequence;
# or concatenated so that adjacent rows with the same prompt share its computation.
RowLayout = Literal["padded", "line", "shared_prompts"]


@dataclass(frozen=True)
class Problem:
    """One problem of a dataset.

    The policy reads ``prompt + prefill``; the reward reads ``prefill + completion``.
    """

    problem_id: str  # "0c5f2d1e9a3b4c6d"
    prompt: str  # "people : Liam , Jack ; Liam says if Liam is a knave then ..."
    prefill: str  # "<think>"
    # JSON value in the format that the reward expects: "(1) Liam is a knave\n(2) Jack is a knight"
    answer: Any
    source: str  # "generated"
    difficulty: str = ""  # "2" (people in the puzzle)
    # the other columns of its row: {"numbers": [3, 1, 2]}
    columns: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""  # location of its answer: "train.jsonl, row 3, column answer"


@dataclass(frozen=True)
class Completion:
    """Sampled tokens, including the stop token, with the engine's log-probabilities.

    ``rollout_logprobs`` are under the sampling distribution: ``log_softmax(logits / T)``,
    renormalized over the kept tokens if top_k, top_p or min_p is active or the tokenizer does not
    define all ids of the model; ``log_softmax(logits)`` for greedy decoding.
    """

    token_ids: tuple[int, ...]  # (17, 41, 2)
    rollout_logprobs: tuple[float, ...]  # (-0.11, -1.6, -0.02)
    finish_reason: FinishReason
    # decoded text without the stop token and padding, with all other special tokens, set by the
    # caller of the engine: " assume Liam knight ...</answer>"
    text: str = ""
    stop_string: str = ""  # string of ``rollout.stop`` that ended it


@dataclass(frozen=True)
class Rollout:
    """A completion with its reward. If scoring timed out or failed, the reward is the failure
    score.
    """

    group_id: int
    problem: Problem
    prompt_ids: tuple[int, ...]
    completion: Completion
    reward: float = math.nan  # 3.0; NaN until it is scored
    # {"format": 1.0, "answer": 2.0}
    reward_breakdown: Mapping[str, float] = field(default_factory=dict)
    correct: bool = False
    parsed: bool = True  # whether the reward function could read an answer
    scoring: ScoringStatus = "ok"
    scoring_error: str = ""  # why scoring failed


@dataclass(frozen=True)
class RolloutGroup:
    """All completions of one prompt in one step."""

    group_id: int
    rollouts: Sequence[Rollout]  # [G]


def all_rollouts(groups: Iterable[RolloutGroup]) -> list[Rollout]:
    """Return the completions of all groups in one list, group by group."""
    rollouts: list[Rollout] = []
    for group in groups:
        rollouts += group.rollouts
    return rollouts


@dataclass(frozen=True)
class SampledGroups:
    """The scored groups of one step."""

    groups: Sequence[RolloutGroup]  # this rank's groups to train on
    sampled: Sequence[RolloutGroup]  # all groups that this rank sampled
    dropped: int  # number of sampled groups, over all ranks, that are not trained on


@dataclass(frozen=True, kw_only=True)
class TrainBatch:
    """The completions of one step as tensors.

    Per-row scalars stay on the host, where microbatches are built: reading them from a GPU would
    synchronize with it. A row of ``input_ids`` is prompt, completion, padding. With causal
    attention right padding needs no mask. Every ``[B, T]`` field is aligned with the completion
    tokens and 0 outside ``completion_mask``. Model outputs are zero before
    `trainer.algorithm.scoring.Scorer.score`, and advantages before they are estimated.
    """

    input_ids: Tensor  # [B, L] int64, L = longest prompt + completion
    prompt_lengths: Tensor  # [B] int64, on the host
    completion_lengths: Tensor  # [B] int64, on the host
    completion_mask: Tensor  # [B, T] float32, 1 at completion tokens
    # [B, T] float32, from the engine; None with optim.old_logprobs=rollout
    rollout_logprobs: Tensor | None
    old_logprobs: Tensor  # [B, T] float32, of the policy before its update
    ref_logprobs: Tensor | None  # [B, T] float32; None if kl_coef is 0
    # [B, T] float32, entropy of the next-token distribution; None with optim.old_logprobs=rollout
    entropies: Tensor | None
    # [B, T] float32, norm of d old_logprob / d (logits / temperature); None with
    # optim.old_logprobs=rollout
    gradient_norms: Tensor | None
    advantages: Tensor  # [B, T] float32
    rewards: Tensor  # [B] float32, on the host
    group_ids: Tensor  # [B] int64, on the host
    # [B] float32, on the host: mean and unbiased standard deviation of the rewards of the
    # completion's group
    group_means: Tensor
    group_stds: Tensor
    # [B] float32, on the host, 1 if the completion was truncated at max_new_tokens
    truncated: Tensor
    # [B] float32, on the host, 1 if scoring failed; such a completion is left out of the update
    failed: Tensor
    # [B], weighted parts of each reward; only set on the full batch, not on selected rows
    reward_parts: Sequence[Mapping[str, float]] = ()
    # weight of each part of the reward: {"format": 0.5, "answer": 2.0}
    part_weights: Mapping[str, float] = field(default_factory=dict)
    # [B, T] float32, of the policy before its update; None if the loss has no `token_statistic`
    token_statistics: Tensor | None = None
    # [B, T] bool, tokens that the loss selects; None if the loss does not select tokens
    chosen: Tensor | None = None
    step: int = 1  # training step, from 1
    total_steps: int = 1  # total steps of the run
    # the rules' states after the previous step
    advantage_state: Mapping[str, float] = field(default_factory=dict)
    loss_state: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LossOutput:
    """A differentiable loss with the detached sums for its metrics."""

    loss: Tensor  # []
    clipped: Tensor  # [B, T], 1 at tokens of the pass whose importance ratio is clipped
    metrics: Mapping[str, Tensor]  # sums over the tokens of the pass; ``ratio_max`` is a maximum


@dataclass(frozen=True)
class RunContext:
    """Location of a run on disk and in MLflow.

    ``run_dir`` is the folder of this run; ``runs_dir`` contains all runs and the local MLflow
    store. After a restart, the MLflow run is found by the tag ``loptune.run`` of ``tags``, or else
    by the id in ``run_dir``, see `loptune.identity`.
    """

    run_dir: Path
    runs_dir: Path
    experiment: str
    run_name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    shares_process: bool = False  # another run may follow in this process
    attempt: int = 0  # attempt number of a trial, see `trainer.attempt`
    # the run's score is the mean of the last `window` evaluations of this metric; three as in
    # arXiv:2505.12929
    metric: str = "eval/accuracy"
    window: int = 3
    # folder in which runs record passed checks at load, so that later ones skip them
    passed_checks: Path | None = None

    @classmethod
    def of(cls, run_dir: str | Path) -> RunContext:
        """Return the context of a single run in a folder."""
        folder = Path(run_dir)
        return cls(folder, folder.parent, "trainer", folder.name)
