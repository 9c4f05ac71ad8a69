"""The states of update rules: named numbers that a rule keeps from step to step."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from loptune.errors import ConfigError
from trainer.config.algorithm import AlgorithmConfig
from trainer.rules.interface import Rule, RuleState, StepSummary

RuleStates = dict[str, dict[str, float]]  # by kind of rule: "advantage", "loss"


def rules_by_kind(config: AlgorithmConfig) -> dict[str, Rule]:
    """Return the configured rules by kind."""
    return {"advantage": config.advantage, "loss": config.loss}


def initial_states(config: AlgorithmConfig) -> RuleStates:
    """Return the states of the rules before the first step.

    Raises:
        ConfigError: a state is not a mapping of names to finite numbers, or a user-defined rule
            raised an exception.
    """
    states = {}
    for kind, rule in rules_by_kind(config).items():
        with rule.errors_located():
            state = rule.initial_state()
        states[kind] = _checked(state, kind, rule)
    return states


def restored_states(config: AlgorithmConfig, saved: Mapping[str, RuleState]) -> RuleStates:
    """Return the states of a checkpoint. A number that is not in the checkpoint, because the rule
    has changed since, gets its initial value. Raises like `initial_states`.
    """
    states = initial_states(config)
    for kind, state in states.items():
        known = saved.get(kind, {})
        states[kind] = {name: known.get(name, value) for name, value in state.items()}
    return states


def next_states(
    config: AlgorithmConfig,
    states: RuleStates,
    summary: StepSummary,
    gather: Callable[[list[Any]], list[Any]],
) -> RuleStates:
    """Return the states after a step. ``gather`` collects the states of all ranks, which must be
    equal.

    Raises:
        ConfigError: a state is not a mapping of the rule's names to finite numbers, or not the same
            on all ranks, or a user-defined rule raised an exception.
    """
    if not any(states.values()):
        return states
    after = {}
    for kind, rule in rules_by_kind(config).items():
        with rule.errors_located():
            state = rule.next_state(states[kind], summary)
        after[kind] = _checked(state, kind, rule)
    everyone = gather([after])
    for kind, rule in rules_by_kind(config).items():
        if any(of_rank[kind] != after[kind] for of_rank in everyone):
            values = [of_rank[kind] for of_rank in everyone]
            raise ConfigError(
                f"rule {rule.name}: the states of the ranks differ after step {summary.step}: "
                f"{values}",
                f"algorithm.{kind}",
                "compute next_state from its arguments only, without random numbers",
                key=f"algorithm.{kind}",
                code="rule-state-differs",
            )
    return after


def state_metrics(states: RuleStates) -> dict[str, float]:
    """Return the states as metrics, ``rule/loss/NAME`` and ``rule/advantage/NAME``."""
    metrics = {}
    for kind, state in states.items():
        for name, value in state.items():
            metrics[f"rule/{kind}/{name}"] = value
    return metrics


def check_state(state: Any, rule: Rule) -> dict[str, float]:
    """Return a state with floats as values.

    Raises:
        ValueError: the state is not a mapping of the rule's names to finite numbers.
    """
    if not isinstance(state, Mapping) or not all(_is_entry(*entry) for entry in state.items()):
        raise ValueError(
            f"has the state {state!r}: return a dict of names and finite numbers, such as "
            "{'target': 0.3}"
        )
    names = rule.initial_state().keys()
    if state.keys() != names:
        raise ValueError(
            f"has a state with {', '.join(state) or 'no names'} after a step, but with "
            f"{', '.join(names) or 'no names'} before the first: return the same names from "
            "next_state and initial_state"
        )
    return {name: float(value) for name, value in state.items()}


def _checked(state: Any, kind: str, rule: Rule) -> dict[str, float]:
    """Return a state with floats as values.

    Raises:
        ConfigError: it is not a mapping of the rule's names to finite numbers.
    """
    try:
        return check_state(state, rule)
    except ValueError as error:
        raise ConfigError(
            f"rule {rule.name} {error}",
            f"algorithm.{kind}",
            "fix the rule",
            key=f"algorithm.{kind}",
            code="rule-state-invalid",
        ) from error


def _is_entry(name: Any, value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(name, str) and name != "" and is_number and math.isfinite(value)
