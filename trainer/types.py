"""The values that pass between the stages of a training step.

Shapes: B completions of the batch, T tokens of the longest completion, L tokens of the longest
prompt with its completion, G completions of a group. Stages never change a value they were given;
they return a new one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rewards.score import ScoringStatus

if TYPE_CHECKING:
    from torch import Tensor as Tensor
else:
    Tensor = Any  # torch takes seconds to import, and many that need a type of these train nothing

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Problem:
    """One task to solve.

    The policy reads ``prompt + prefill``; the reward reads ``prefill + completion``.
    """

    problem_id: str  # "0c5f2d1e9a3b4c6d"
    prompt: str  # "people : Liam , Jack ; Liam says if Liam is a knave then ..."
    prefill: str  # "<think>"
    # JSON value, in the form the task's reward expects: "(1) Liam is a knave\n(2) Jack is a knight"
    answer: Any
    source: str  # "generated"
    difficulty: str = ""  # "2", people of the puzzle
    # of its row in the data: {"numbers": [3, 1, 2]}
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Completion:
    """The sampled tokens, stop token included, with the engine's log-probabilities.

    ``rollout_logprobs`` are those of the distribution the tokens were drawn from: of
    ``log_softmax(logits / T)``, renormalized over the kept tokens where top_k, top_p or min_p drop
    some; of ``log_softmax(logits)`` where the completion is greedy.
    """

    token_ids: tuple[int, ...]  # (17, 41, 2)
    rollout_logprobs: tuple[float, ...]  # (-0.11, -1.6, -0.02)
    finish_reason: FinishReason
    # " assume Liam knight ...</answer>", without the stop token; an engine leaves it to its caller
    text: str = ""


@dataclass(frozen=True)
class Rollout:
    """A completion with its reward; where scoring timed out or failed, with the configured failure
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


@dataclass(frozen=True)
class RolloutGroup:
    """All completions of one prompt in one step."""

    group_id: int
    rollouts: Sequence[Rollout]  # [G]


@dataclass(frozen=True)
class SampledGroups:
    """The scored groups of one step."""

    groups: Sequence[RolloutGroup]  # this rank's share of those to train on
    sampled: Sequence[RolloutGroup]  # all that this rank sampled
    dropped: int  # groups of all ranks that were sampled and are not trained on


@dataclass(frozen=True, kw_only=True)
class TrainBatch:
    """The completions of one step as tensors.

    What is one number a row stays on the host, where microbatches are cut: reading it from a GPU
    would wait for all work that the GPU has been given. A row of ``input_ids`` is the prompt, the
    completion, then padding: with causal attention the padding needs no mask. Every ``[B, T]``
    field is aligned with the completion tokens and 0 outside ``completion_mask``. Model outputs are
    zero until `trainer.algorithm.scoring.Scorer.score`, advantages until they are estimated.
    """

    input_ids: Tensor  # [B, L] int64, L = longest prompt + completion
    prompt_lengths: Tensor  # [B] int64, on the host
    completion_lengths: Tensor  # [B] int64, on the host
    completion_mask: Tensor  # [B, T] float32, 1 at completion tokens
    # [B, T] float32, from the engine; None where they are the old ones
    rollout_logprobs: Tensor | None
    old_logprobs: Tensor  # [B, T] float32, of the policy before its update
    ref_logprobs: Tensor | None  # [B, T] float32, None where no KL coefficient asks for a reference
    # [B, T] float32, of the next-token distributions; None where nothing was recomputed
    entropies: Tensor | None
    # [B, T] float32, of the old log-probability by the scaled logits; likewise
    gradient_norms: Tensor | None
    advantages: Tensor  # [B, T] float32
    rewards: Tensor  # [B] float32, on the host
    group_ids: Tensor  # [B] int64, on the host
    truncated: Tensor  # [B] float32, on the host, 1 where the completion ran into the token limit
    # [B], weighted parts of each reward, of the whole batch only
    reward_parts: Sequence[Mapping[str, float]] = ()
    # {"format": 0.5, "answer": 2.0}
    part_weights: Mapping[str, float] = field(default_factory=dict)
    # [B, T] float32, of Lp-Reg's proxy; -inf at tokens that it has not
    proxy_logprobs: Tensor | None = None
    # [B, T] bool, tokens that the loss singles out; None where it singles out none
    chosen: Tensor | None = None


@dataclass(frozen=True)
class LossOutput:
    """A differentiable scalar, with the detached sums that its metrics are made of."""

    loss: Tensor  # []
    clipped: Tensor  # [B, T], 1 at tokens of the pass whose importance ratio is clipped
    metrics: Mapping[str, Tensor]  # sums over the tokens of the pass


@dataclass(frozen=True)
class RunContext:
    """Where a run lives on disk and in MLflow.

    ``run_dir`` belongs to this run alone; ``runs_dir`` is the folder that holds all runs and the
    local MLflow store. The tags find the same MLflow run again after a restart.
    """

    run_dir: Path
    runs_dir: Path
    experiment: str
    run_name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    is_one_of_many: bool = False  # another run may follow in this process
    attempt: int = 0  # of a trial, as its driver counts (`trainer.attempt`)

    @classmethod
    def of(cls, run_dir: str | Path) -> RunContext:
        """Return the context of a single run in a folder."""
        folder = Path(run_dir)
        return cls(folder, folder.parent, "trainer", folder.name)
