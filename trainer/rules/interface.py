"""The interface of update rules: their base class, and the inputs and outputs of advantages and
losses.

Neither this module nor any built-in rule imports torch, because loading a configuration imports the
rule classes and must not wait for torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, get_args

from loptune.section import Section
from rewards.user_code import folder_of
from trainer.rules.custom import errors_located, rebuild_rule
from trainer.types import Tensor, TrainBatch

if TYPE_CHECKING:
    import torch

RuleState = Mapping[str, float]  # a rule's numbers that are kept between steps
SumOverRanks = Callable[[Tensor], Tensor]
Gather = Callable[[list[Any]], list[Any]]

# larger log-ratios could overflow exp() in float32 and make the gradient NaN, even if the ratio is
# clipped
MAX_LOG_RATIO = 20.0
# two float32 forward passes with the same weights give log-ratios up to about this size
_ROUNDING = 1e-5
_ABSENT: Any = None  # for inputs that tests build by hand; training always sets these fields
KlPlacement = Literal["loss", "reward"]
Aggregation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "constant"]


class StepSummary(NamedTuple):
    """Summary of a training step for `Rule.next_state`, equal on all ranks."""

    step: int  # training step, from 1
    total_steps: int  # total steps of the run
    reward: float  # mean over the step's completions
    accuracy: float  # fraction of correct completions
    # float: mean entropy over completion tokens before the update [nats]; None with
    # optim.old_logprobs=rollout. A rule that reads it must set `needs_distributions`.
    entropy: Any
    clip_fraction: float  # fraction of updated tokens that the loss clips
    approx_kl: float  # mean of old_logprob - logprob over updated tokens [nats]


class Rule(Section):
    """A rule (loss or advantage) that the configuration selects by name. Its fields are its
    parameters.
    """

    is_value: ClassVar[bool] = True
    # whether the rule needs entropies, gradient norms or token statistics from before the update
    needs_distributions: ClassVar[bool] = False
    name: str = ""

    def initial_state(self) -> RuleState:
        """Return the rule's state before the first step: named numbers, none by default.

        A rule receives its state in the field ``state`` of its inputs. Rule objects are immutable.
        """
        return {}

    def next_state(self, state: RuleState, summary: StepSummary) -> RuleState:
        """Return the state for the next step. Called once at the end of each step, on all ranks.

        Use the arguments only: they are equal on all ranks, so the states are, too. Checkpoints
        store the state.
        """
        return state

    @property
    def is_own(self) -> bool:
        """Whether a user's module defines the rule."""
        return ":" in self.name

    def errors_located(self) -> AbstractContextManager[None]:
        """Return a context that turns the exceptions of a user's rule into a ConfigError with file
        and line. Exceptions of built-in rules are not changed.
        """
        return errors_located(self.name) if self.is_own else nullcontext()

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle a user-defined rule as its parameters and its module's folder, because the reading
        process may have a different working directory.
        """
        if not self.is_own:
            return super().__reduce__()
        ancestors = (ancestor for ancestor in type(self).__mro__ if _is_ours(ancestor))
        return rebuild_rule, (self.name, next(ancestors), folder_of(self.name), self.model_dump())


class UpdateTotals(NamedTuple):
    """Size of an update batch over all microbatches and ranks: the loss denominators.

    Dividing by them makes the loss independent of gradient accumulation and data parallelism.
    ``tokens`` counts all tokens of `denominator_mask`, including those that a filter or isolation
    pass excludes, and ``sequences`` counts all completions.
    """

    tokens: float
    sequences: float
    max_tokens: float = 1.0  # maximum tokens per completion: Dr. GRPO's constant


@dataclass(frozen=True, kw_only=True)
class AdvantageInputs:
    """Inputs of an advantage estimator: this rank's scored completions. All completions of a group
    are on one rank.
    """

    rewards: Tensor  # [B] float32, on the host
    group_ids: Tensor  # [B] int64, on the host
    completion_mask: Tensor  # [B, T]
    old_logprobs: Tensor  # [B, T], 0 outside the completions
    ref_logprobs: Tensor | None  # [B, T]
    # [B, T], entropies of the policy before its update; None with optim.old_logprobs=rollout
    entropies: Tensor | None
    # [B, T], norm of d old_logprob / d (logits / temperature); None with
    # optim.old_logprobs=rollout
    gradient_norms: Tensor | None = None
    reward_parts: Sequence[Mapping[str, float]]  # [B], weighted parts of each reward
    part_weights: Mapping[str, float]  # part -> its weight in the reward
    kl_coef: float  # KL coefficient if the KL penalty is in the reward, else 0
    sum_over_ranks: SumOverRanks
    step: int = 1  # training step, from 1
    total_steps: int = 1  # total steps of the run
    # state of this rule after the previous step
    state: RuleState = field(default_factory=dict)

    @classmethod
    def of(cls, batch: TrainBatch, kl_coef: float, sum_over_ranks: SumOverRanks) -> Self:
        """Return the inputs of a scored batch."""
        return cls(
            **_shared(cls, batch),
            kl_coef=kl_coef,
            sum_over_ranks=sum_over_ranks,
            state=batch.advantage_state,
        )


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """Inputs of a policy loss: a microbatch in one pass. [B, T] fields are aligned with completion
    tokens.
    """

    logprobs: Tensor  # [B, T], with gradient
    old_logprobs: Tensor  # [B, T], 0 outside the completions
    ref_logprobs: Tensor | None  # [B, T]
    # [B, T], 0 outside the completions; None with optim.old_logprobs=rollout
    rollout_logprobs: Tensor | None
    advantages: Tensor  # [B, T]
    completion_mask: Tensor  # [B, T]
    token_mask: Tensor  # [B, T], 1 at the tokens of the pass
    totals: UpdateTotals
    chosen: Tensor | None = None  # [B, T] bool, tokens selected by `PolicyLoss.choose`
    # [B, T], from `PolicyLoss.token_statistic`; 0 outside the completions
    token_statistics: Tensor | None = None
    # [B, T], of the current policy, with gradient; None unless the rule sets `needs_entropies` or
    # entropy_coef is above 0
    entropies: Tensor | None = None
    # [B, T], of the policy before its update; None with optim.old_logprobs=rollout
    old_entropies: Tensor | None = None
    rewards: Tensor = _ABSENT  # [B, 1]
    group_means: Tensor = _ABSENT  # [B, 1], mean reward of the completion's group
    # [B, 1], unbiased standard deviation of the rewards of the completion's group; 1 for a group of
    # size 1
    group_stds: Tensor = _ABSENT
    step: int = 1  # training step, from 1
    total_steps: int = 1  # total steps of the run
    # state of this rule after the previous step
    state: RuleState = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        rows: TrainBatch,
        logprobs: Tensor,
        token_mask: Tensor,
        totals: UpdateTotals,
        entropies: Tensor | None = None,
    ) -> Self:
        """Return the inputs of some rows [B, T] of a scored batch with advantages."""
        shared = _shared(cls, rows)
        for name in ("rewards", "group_means", "group_stds"):
            shared[name] = shared[name].to(rows.completion_mask, non_blocking=True)[:, None]
        shared["entropies"] = entropies
        return cls(
            **shared,
            logprobs=logprobs,
            token_mask=token_mask,
            totals=totals,
            old_entropies=rows.entropies,
            state=rows.loss_state,
        )

    @property
    def log_ratio(self) -> Tensor:
        """``logprob - old_logprob`` clamped to ±20, [B, T]; no gradient where clamped."""
        return (self.logprobs - self.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def without_rounding(log_ratio: Tensor) -> Tensor:
    """Return the log-ratio, with values that rounding explains set to 0 without a gradient.

    For penalties on the log-ratio: where the advantage is 0, a rounding error would be the whole
    gradient, and Adam takes a full step for a gradient of any size.
    """
    return log_ratio.where(log_ratio.detach().abs() > _ROUNDING, 0.0)


def _shared(kind: type[Any], batch: TrainBatch) -> dict[str, Any]:
    """Return the batch fields that a rule's inputs share."""
    return {
        part.name: getattr(batch, part.name) for part in fields(kind) if hasattr(batch, part.name)
    }


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "trainer"


class TokenLosses(NamedTuple):
    """Per-token losses before aggregation, and which tokens are clipped."""

    losses: Tensor  # [B, T], with gradient
    clipped: Tensor | bool = False  # [B, T] bool, or False for no token
    dual_clipped: Tensor | bool = False  # [B, T] bool, or False for no token


class Advantage(Rule):
    """Estimator of advantages per completion or per completion token.

    A group consists of the completions of one prompt. In a group of size 1 the advantage is the raw
    reward, as in verl. Compute reward statistics in float64. In float32 the mean of eight rewards
    of 0.7 is not exactly 0.7, and dividing by their tiny standard deviation turns the rounding
    error into an advantage.
    """

    # supported KL placements; the first is the default
    kl_placements: ClassVar[tuple[KlPlacement, ...]] = ("loss",)
    # whether the estimator compares completions of the same prompt
    needs_groups: ClassVar[bool] = True

    def __call__(self, inputs: AdvantageInputs) -> Tensor:
        """Return an advantage for every completion, [B], or for every token, [B, T]."""
        raise NotImplementedError


class PolicyLoss(Rule):
    """A per-token policy loss from importance ratio and advantage.

    Throughout, ``r = pi / pi_old = exp(logprob - old_logprob)``, A is the advantage (after AR),
    ``sg`` is stop-gradient, and losses are minimized. Tokens with zero advantage must have no
    gradient unless ``has_regularizer`` is set.
    """

    # supported aggregations, default first
    aggregations: ClassVar[tuple[Aggregation, ...]] = get_args(Aggregation)
    # whether a token's loss depends on other tokens of the completion
    sequence_level: ClassVar[bool] = False
    # whether the loss reads the current policy's entropies, which cost time and memory
    needs_entropies: ClassVar[bool] = False
    # whether a token with zero advantage may have a gradient
    has_regularizer: ClassVar[bool] = False

    def __call__(self, tokens: LossInputs) -> TokenLosses | Tensor:
        """Return the loss of every token, [B, T], alone or with the masks of clipped tokens."""
        raise NotImplementedError

    def token_statistic(self, probabilities: Tensor, tokens: Tensor) -> Tensor | None:
        """Return a number for every completion token, [n], or None if the loss needs none.

        It is called while the policy from before the update is scored, with a few tokens at a time,
        because the distributions of a batch do not fit into memory. The loss and `choose` receive
        the result as ``token_statistics``. A loss that overrides this method must set
        ``needs_distributions``.

        Args:
            probabilities: [n, V], the distribution of each token; must not be changed in place.
            tokens: [n, 1] int64, the tokens of the completions.
        """
        return None

    def choose(
        self, batch: TrainBatch, tokens: Tensor, gather: Gather, generator: torch.Generator | None
    ) -> Tensor | None:
        """Return the mask of tokens that the loss treats specially, [B, T] bool, or None.

        Called once per rollout batch, with advantages before AR and log-probabilities from before
        the update, so that the selection does not depend on microbatches, ranks or AR.

        Args:
            batch: the scored batch of this rank with advantages.
            tokens: [B, T], mask of the tokens that count in a token mean.
            gather: gathers items from all ranks.
            generator: generator for random selection; None selects in row order.
        """
        return None
