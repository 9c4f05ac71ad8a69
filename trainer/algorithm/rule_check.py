"""Checks of a user's own rules on random tensors, before the first step."""

import inspect
import pickle
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from trainer.config.algorithm import AlgorithmConfig
from trainer.errors import ConfigError
from trainer.rules.inputs import AdvantageInputs, LossInputs, TokenLosses, UpdateTotals
from trainer.rules.own import errors_named
from trainer.rules.policy_loss import PolicyLoss
from trainer.rules.rule import Rule
from trainer.types import TrainBatch

_LENGTHS = (6, 4, 5, 2)
_MOST_S = 1.0  # for a rule on these few tokens


def check_rules(config: AlgorithmConfig) -> None:
    """Refuse a user's rule that cannot train.

    Raises:
        ConfigError: names the rule, its file and line, and what is wrong.
    """
    for rule, problems in ((config.advantage, _advantage_problems), (config.loss, _loss_problems)):
        if rule.own is None:
            continue
        with errors_named(rule):
            problem = next(problems(config), None) or _sending_problem(rule)
        if problem is not None:
            raise ConfigError(f"rule {rule.name} {problem}", _place(rule), "correct the rule")


def _advantage_problems(config: AlgorithmConfig) -> Iterator[str]:
    batch = _random_batch()
    inputs = AdvantageInputs.of(batch, 0.0, lambda tensor: tensor)
    start = time.monotonic()
    advantages = config.advantage(inputs)
    if time.monotonic() - start > _MOST_S:
        yield f"takes more than {_MOST_S:g} s for {sum(_LENGTHS)} tokens"
    shapes = (batch.rewards.shape, batch.completion_mask.shape)
    if not isinstance(advantages, Tensor) or advantages.shape not in shapes:
        yield f"returns {_described(advantages)}; expected a tensor [{len(_LENGTHS)}] or {list(shapes[1])}"
    if not advantages.isfinite().all():
        yield "returns numbers that are not finite"
    if not torch.equal(advantages, config.advantage(inputs)):
        yield "returns something else for the same completions: it keeps a state, or draws numbers"


def _loss_problems(config: AlgorithmConfig) -> Iterator[str]:
    batch = _random_batch()
    mask = batch.completion_mask
    chosen = config.loss.choose(batch, mask, lambda items: items, None)
    batch = replace(batch, chosen=chosen)
    start = time.monotonic()
    losses = _losses(config.loss, batch, mask)[0]
    if time.monotonic() - start > _MOST_S:
        yield f"takes more than {_MOST_S:g} s for {sum(_LENGTHS)} tokens"
    if not isinstance(losses, Tensor) or losses.shape != mask.shape:
        yield f"returns {_described(losses)}; expected a loss for every token, {list(mask.shape)}"
    if not losses[mask.bool()].isfinite().all():
        yield "returns losses that are not finite"
    if not losses.requires_grad:
        yield "has no gradient: compute it from tokens.logprobs or tokens.log_ratio"
    whole = _gradient(config.loss, batch, mask)
    if not whole.isfinite().all():
        yield "has gradients that are not finite"
    if not whole.any():
        yield "has a gradient of 0 at every token"
    if (whole * (1 - mask)).any():
        yield "has a gradient outside of the completions: keep to tokens.completion_mask"
    if not torch.equal(whole, _gradient(config.loss, batch, mask)):
        yield "returns something else for the same tokens: it keeps a state, or draws numbers"
    without = replace(batch, advantages=torch.zeros_like(mask))
    if not config.loss.has_penalty and _gradient(config.loss, without, mask).any():
        yield "has a gradient where the advantage is 0: set `has_penalty: ClassVar[bool] = True` if it should"
    low = mask * (batch.old_logprobs < -1)
    halves = _gradient(config.loss, batch, low) + _gradient(config.loss, batch, mask - low)
    if config.isolates and not torch.allclose(halves, whole, rtol=1e-4, atol=1e-6):
        yield (
            "cannot be combined with Lopti: the gradients of two passes over parts of the tokens do not add up to "
            "that of one pass, because a token's loss depends on tokens.token_mask or on other tokens' gradients"
        )


def _losses(rule: PolicyLoss, batch: TrainBatch, token_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses of all tokens and the log-probabilities that they are computed from, [B, T] each."""
    noise = torch.linspace(-0.3, 0.3, token_mask.numel()).view(token_mask.shape)
    logprobs = (batch.old_logprobs + noise * batch.completion_mask).requires_grad_()
    totals = UpdateTotals(float(batch.completion_mask.sum()), len(token_mask), token_mask.shape[1])
    result = rule(LossInputs.of(batch, logprobs, token_mask, totals))
    return (result.losses if isinstance(result, TokenLosses) else result), logprobs


def _gradient(rule: PolicyLoss, batch: TrainBatch, token_mask: Tensor) -> Tensor:
    losses, logprobs = _losses(rule, batch, token_mask)
    # Outside the completions nothing is weighted: a gradient there comes from losses of other tokens.
    (losses * token_mask).sum().backward()
    return torch.zeros_like(token_mask) if logprobs.grad is None else logprobs.grad


def _sending_problem(rule: Rule) -> str | None:
    try:
        rule.model_dump(mode="json")
        same = pickle.loads(pickle.dumps(rule)) == rule
    except Exception as error:
        return f"cannot be sent to another process ({type(error).__name__}): give it numbers and names as parameters"
    return None if same else "changes when it is sent to another process"


def _described(value: object) -> str:
    return f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _place(rule: Rule) -> str:
    module = sys.modules[type(rule).__module__]
    written = getattr(module, rule.label)
    return f"{module.__file__}:{inspect.getsourcelines(written)[1]}"


def _random_batch() -> TrainBatch:
    """Return four scored completions of two prompts; the last tokens of the shorter ones are padding."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor(_LENGTHS)
    mask = (torch.arange(max(_LENGTHS))[None] < lengths[:, None]).float()

    def numbers(low: float, high: float) -> Tensor:
        return (low + (high - low) * torch.rand(mask.shape, generator=generator)) * mask

    old = numbers(-3.0, -0.01)
    rewards = torch.tensor([1.0, 0.0, 0.5, 1.0])
    return TrainBatch(
        input_ids=torch.zeros(mask.shape, dtype=torch.int64),
        prompt_lengths=torch.ones_like(lengths),
        completion_lengths=lengths,
        completion_mask=mask,
        rollout_logprobs=old,
        old_logprobs=old,
        ref_logprobs=numbers(-3.0, -0.01),
        entropies=numbers(0.0, 2.0),
        gradient_norms=numbers(0.0, 1.0),
        advantages=numbers(-2.0, 2.0),
        rewards=rewards,
        group_ids=torch.tensor([0, 0, 1, 1]),
        truncated=torch.zeros(len(_LENGTHS)),
        reward_parts=torch.stack([torch.stack([rewards, rewards / 2]), torch.ones(2, len(rewards))]).permute(2, 1, 0),
        proxy_logprobs=numbers(-3.0, -0.01),
    )
