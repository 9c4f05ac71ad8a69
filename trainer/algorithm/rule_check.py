"""Checks of user-defined rules on random tensors, run before the first step."""

import inspect
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loptune.errors import ConfigError
from trainer.algorithm.batching import lengths_to_mask
from trainer.algorithm.passes import select_loss_tokens
from trainer.algorithm.rule_state import check_state
from trainer.config.algorithm import AlgorithmConfig
from trainer.rules.interface import (
    AdvantageInputs,
    LossInputs,
    PolicyLoss,
    Rule,
    StepSummary,
    TokenLosses,
    UpdateTotals,
)
from trainer.types import TrainBatch

_LENGTHS = (6, 4, 5, 2)
_MOST_S = 1.0  # time limit of a rule on the random batch


class _Fault(NamedTuple):
    code: str  # error code
    text: str  # message after "rule NAME"


def check_rules(config: AlgorithmConfig) -> None:
    """Raise if training with a user-defined rule would fail.

    Raises:
        ConfigError: a rule fails; the error shows its file, its line and the problem.
    """
    for rule, problems in ((config.advantage, _advantage_problems), (config.loss, _loss_problems)):
        if not rule.is_own:
            continue
        with rule.errors_located():
            problem = next(problems(config), None) or _pickling_problem(rule)
        if problem:
            raise ConfigError(
                f"rule {rule.name} {problem.text}", _place(rule), "fix the rule", code=problem.code
            )


def _advantage_problems(config: AlgorithmConfig) -> Iterator[_Fault]:
    """Yield the problems of an advantage rule: fields that it reads without declaring them, an
    invalid state, or an invalid output.
    """
    rule = config.advantage

    def advantages(batch: TrainBatch) -> Tensor:
        inputs = AdvantageInputs.of(batch, kl_coef=0.0, sum_over_ranks=lambda tensor: tensor)
        return rule(inputs)

    complete = replace(_random_batch(), advantage_state=rule.initial_state())
    declared = _declared(complete, rule)
    yield from _undeclared_problems(
        rule, lambda: advantages(declared), lambda: advantages(complete)
    )
    yield from _state_problems(rule)
    per_completion = declared.rewards
    per_token = declared.completion_mask
    yield from _output_problems(lambda: advantages(declared), [per_completion, per_token])


def _loss_problems(config: AlgorithmConfig) -> Iterator[_Fault]:
    rule = config.loss
    everything = replace(_random_batch(), loss_state=rule.initial_state())
    mask = everything.completion_mask

    def call(batch: TrainBatch, with_entropies: bool) -> None:
        _losses(rule, select_loss_tokens(batch, config), mask, with_entropies)

    reads_entropies = config.needs_entropies
    batch = _declared(everything, rule)
    yield from _undeclared_problems(
        rule, lambda: call(batch, reads_entropies), lambda: call(everything, reads_entropies)
    )
    fails_without = not reads_entropies and _raises(lambda: call(batch, False))
    if fails_without and not _raises(lambda: call(batch, True)):
        yield _Fault(
            "rule-needs-entropies",
            "reads tokens.entropies, which are None unless it sets `needs_entropies: "
            "ClassVar[bool] = True`",
        )
    yield from _state_problems(rule)
    batch = select_loss_tokens(batch, config)
    yield from _output_problems(lambda: _losses(rule, batch, mask, reads_entropies)[0], [mask])
    if not _losses(rule, batch, mask, reads_entropies)[0].requires_grad:
        yield _Fault(
            "rule-without-gradient",
            "has no gradient: compute the loss from tokens.logprobs or tokens.log_ratio",
        )
    full = _gradient(rule, batch, mask, reads_entropies)
    if not full.isfinite().all():
        yield _Fault("rule-gradient-not-finite", "has NaN or infinite gradients")
    if not full.any():
        yield _Fault("rule-zero-gradient", "has a gradient of 0 at every token")
    if (full[0] * batch.advantages).sum() > 0:
        yield _Fault(
            "rule-sign",
            "lowers the probability of tokens with a positive advantage: return a loss (it "
            "is minimized), not a reward",
        )
    if (full * (1 - mask)).any():
        yield _Fault(
            "rule-outside-mask",
            "has a gradient outside the completions: multiply by tokens.completion_mask",
        )
    zero_advantage = select_loss_tokens(replace(batch, advantages=torch.zeros_like(mask)), config)
    if not rule.has_regularizer and _gradient(rule, zero_advantage, mask, reads_entropies).any():
        yield _Fault(
            "rule-zero-advantage",
            "has a gradient where the advantage is 0: if that is intended, set `has_regularizer: "
            "ClassVar[bool] = True`",
        )
    low = mask * (batch.old_logprobs < -1)
    halves = _gradient(rule, batch, low, reads_entropies)
    halves = halves + _gradient(rule, batch, mask - low, reads_entropies)
    if config.isolates and not torch.allclose(halves, full, rtol=1e-4, atol=1e-6):
        yield _Fault(
            "rule-not-summable",
            "cannot be combined with Lopti: the gradients of the two passes do not sum to "
            "the gradient of one pass, because a token's loss depends on tokens.token_mask "
            "or on the gradients of other tokens",
        )


def _output_problems(compute: Callable[[], Any], like: Sequence[Tensor]) -> Iterator[_Fault]:
    """Yield the problems of a rule's output: slow, wrong shape, non-finite, or not
    deterministic.
    """
    start = time.monotonic()
    values = compute()
    if time.monotonic() - start > _MOST_S:
        yield _Fault("rule-slow", f"took more than {_MOST_S:g} s for {sum(_LENGTHS)} tokens")
    shapes = [list(tensor.shape) for tensor in like]
    shape = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
    if shape not in shapes:
        yield _Fault(
            "rule-shape",
            f"returns {shape}; expected a tensor of shape {' or '.join(map(str, shapes))}",
        )
    if not values.isfinite().all():
        yield _Fault("rule-not-finite", "returns NaN or infinity")
    if not torch.equal(values, compute()):
        yield _Fault("rule-state", "is not deterministic: it keeps state or uses random numbers")


def _declared(batch: TrainBatch, rule: Rule) -> TrainBatch:
    """Return the batch as the rule may read it: entropies and gradient norms are None unless the
    rule declares `needs_distributions`.
    """
    if rule.needs_distributions:
        return batch
    return replace(batch, entropies=None, gradient_norms=None)


def _undeclared_problems(
    rule: Rule, declared: Callable[[], Any], everything: Callable[[], Any]
) -> Iterator[_Fault]:
    """Yield a problem if a rule fails with only the fields that it declares, but not with all
    fields.
    """
    if not rule.needs_distributions and _raises(declared) and not _raises(everything):
        yield _Fault(
            "rule-needs-distributions",
            "reads entropies or gradient norms from before the update, which are None with "
            "optim.old_logprobs=rollout: set `needs_distributions: ClassVar[bool] = True`",
        )


def _raises(call: Callable[[], Any]) -> bool:
    try:
        call()
    except Exception:
        return True
    return False


def _state_problems(rule: Rule) -> Iterator[_Fault]:
    """Yield the problems of a rule's state over two steps."""
    state = rule.initial_state()
    yield from _undeclared_problems(
        rule,
        lambda: rule.next_state(state, _summary(1)._replace(entropy=None)),
        lambda: rule.next_state(state, _summary(1)),
    )
    for step in (1, 2):
        summary = _summary(step)
        after = rule.next_state(state, summary)
        if after != rule.next_state(state, summary):
            yield _Fault(
                "rule-state",
                "has a next_state that is not deterministic: it keeps state itself or uses random "
                "numbers",
            )
        try:
            check_state(after, rule)
        except ValueError as error:
            yield _Fault("rule-state-invalid", str(error))
            return
        state = after


def _summary(step: int) -> StepSummary:
    """Return an artificial summary of a step in a run of two steps."""
    return StepSummary(
        step=step,
        total_steps=2,
        reward=0.5,
        accuracy=0.5,
        entropy=1.0 / step,
        clip_fraction=0.1,
        approx_kl=0.01,
    )


def _losses(
    rule: PolicyLoss, batch: TrainBatch, token_mask: Tensor, with_entropies: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the token losses, and the log-probabilities and entropies they were computed from,
    [B, T] each.
    """
    noise = torch.linspace(-0.3, 0.3, token_mask.numel()).view(token_mask.shape)
    logprobs = (batch.old_logprobs + noise * batch.completion_mask).requires_grad_()
    entropies = ((0.5 + 0.1 * noise.flip(0)) * batch.completion_mask).requires_grad_()
    totals = UpdateTotals(sum(_LENGTHS), len(_LENGTHS), max(_LENGTHS))
    if batch.entropies is not None:
        batch = replace(batch, entropies=0.5 * batch.completion_mask)
    given = entropies if with_entropies else None
    result = rule(LossInputs.of(batch, logprobs, token_mask, totals, given))
    losses = result.losses if isinstance(result, TokenLosses) else result
    return losses, logprobs, entropies


def _gradient(
    rule: PolicyLoss, batch: TrainBatch, token_mask: Tensor, with_entropies: bool
) -> Tensor:
    """Return the gradients with respect to log-probabilities and entropies, [2, B, T]."""
    losses, logprobs, entropies = _losses(rule, batch, token_mask, with_entropies)
    # Losses outside the mask are zeroed, so a gradient there comes from the losses of other tokens.
    # Adding 0 times both keeps autograd.grad from failing on losses without a gradient.
    total = (losses * token_mask + 0 * logprobs + 0 * entropies).sum()
    return torch.stack(torch.autograd.grad(total, (logprobs, entropies)))


def _pickling_problem(rule: Rule) -> _Fault | None:
    try:
        rule.model_dump(mode="json")
        pickle.dumps(rule)
    except Exception as error:
        return _Fault(
            "rule-not-picklable",
            f"cannot be sent to another process ({type(error).__name__}): use only numbers "
            "and strings as parameters",
        )
    return None


def _place(rule: Rule) -> str:
    module_name, _, attribute = rule.name.partition(":")
    module = sys.modules[module_name]
    written = getattr(module, attribute)
    return f"{module.__file__}:{inspect.getsourcelines(written)[1]}"


def _random_batch() -> TrainBatch:
    """Return a scored batch of four completions of two prompts, padded to the longest."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor(_LENGTHS)
    mask = lengths_to_mask(lengths)
    noise = {
        field.name: mask * torch.rand(mask.shape, generator=generator)
        for field in fields(TrainBatch)
    }
    logprobs = {name: -3 * values for name, values in noise.items() if name.endswith("logprobs")}
    rewards = torch.tensor([1.0, 0.0, 0.5, 1.0])
    rows: dict[str, Any] = {
        "completion_mask": mask,
        "advantages": mask - 2 * noise["advantages"],
        "rewards": rewards,
        "group_ids": torch.tensor([0, 0, 1, 1]),
        "group_means": torch.tensor([0.5, 0.5, 0.75, 0.75]),
        "group_stds": torch.tensor([0.7071, 0.7071, 0.3536, 0.3536]),
        "step": 1,
        "total_steps": 2,
        "advantage_state": {},
        "loss_state": {},
        "truncated": rewards * 0,
        "failed": rewards * 0,
        "reward_parts": [{"first": 0.25, "second": reward - 0.25} for reward in rewards.tolist()],
        "part_weights": {"first": 1.0, "second": 2.0},
    }
    return TrainBatch(**{**noise, **logprobs, **rows})
