"""The values that pass between the stages of a training step.

Shapes: B completions of the batch, T tokens of the longest completion, L tokens of the longest prompt with its
completion, G completions of a group. Stages never change a value they were given; they return a new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rewards.score import ScoringStatus

if TYPE_CHECKING:
    from torch import Tensor  # seconds to import, and many that need a type of these train nothing

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Problem:
    """One task to solve.

    The policy reads ``prompt + prefill``; the reward reads ``prefill + completion``.
    """

    problem_id: str
    prompt: str
    prefill: str
    answer: Any  # JSON value, in the form the task's reward expects
    source: str
    difficulty: str = ""


@dataclass(frozen=True)
class Completion:
    """What the policy wrote: the sampled tokens (stop token included) and the engine's log-probabilities."""

    token_ids: tuple[int, ...]
    rollout_logprobs: tuple[float, ...]
    text: str
    finish_reason: FinishReason


@dataclass(frozen=True)
class Rollout:
    """A completion with its reward; where scoring timed out or failed, with the configured failure score."""

    group_id: int
    problem: Problem
    prompt_ids: tuple[int, ...]
    completion: Completion
    reward: float
    reward_breakdown: Mapping[str, float]
    correct: bool
    parsed: bool = True  # whether the reward function could read an answer
    scoring: ScoringStatus = "ok"
    scoring_message: str = ""


@dataclass(frozen=True)
class RolloutGroup:
    """All completions of one prompt in one step."""

    group_id: int
    rollouts: Sequence[Rollout]  # [G]


@dataclass(frozen=True)
class TrainBatch:
    """The completions of one step as tensors.

    A row of ``input_ids`` is the prompt, the completion, then padding: with causal attention the padding needs
    no mask. Every ``[B, T]`` field is aligned with the completion tokens and 0 outside ``completion_mask``.
    """

    input_ids: Tensor  # [B, L] int64, L = longest prompt + completion
    prompt_lengths: Tensor  # [B] int64
    completion_mask: Tensor  # [B, T] float32, 1 at completion tokens
    rollout_logprobs: Tensor | None  # [B, T] float32, from the engine; None where they are the old ones
    old_logprobs: Tensor  # [B, T] float32, of the policy before its update
    ref_logprobs: Tensor | None  # [B, T] float32, None where no KL coefficient asks for a reference
    entropies: Tensor  # [B, T] float32, of the next-token distributions before the update
    gradient_norms: Tensor  # [B, T] float32, of the old log-probability by the scaled logits
    advantages: Tensor  # [B, T] float32
    rewards: Tensor  # [B] float32
    group_ids: Tensor  # [B] int64
    truncated: Tensor  # [B] float32, 1 where the completion ran into the token limit

    @property
    def completion_lengths(self) -> Tensor:
        """Completion tokens of each row, [B] int64."""
        return self.completion_mask.sum(dim=1).long()


@dataclass(frozen=True)
class LossOutput:
    """A differentiable scalar, and detached what its metrics are made of."""

    loss: Tensor  # []
    clipped: Tensor  # [B, T], 1 at tokens of the pass whose importance ratio is clipped
    metrics: Mapping[str, Tensor]  # sums over the tokens of the pass


@dataclass(frozen=True)
class RunContext:
    """Where a run lives on disk and in MLflow.

    ``run_dir`` belongs to this run alone; ``runs_dir`` is the folder that holds all runs and the embedded
    MLflow store. The tags find the same MLflow run again after a restart.
    """

    run_dir: Path
    runs_dir: Path
    experiment: str
    run_name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    is_one_of_many: bool = False  # another run may follow in this process

    @classmethod
    def of(cls, run_dir: str | Path) -> RunContext:
        """The context of a single run in a folder."""
        folder = Path(run_dir)
        return cls(folder, folder.parent, "trainer", folder.name)
