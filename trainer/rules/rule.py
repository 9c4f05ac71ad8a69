"""Base class of update rules: an equation with its parameters."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, NamedTuple

from trainer.rules.own import errors_located, folder_of, load_again
from trainer.section import Section

RuleState = Mapping[str, float]  # what a rule keeps from step to step


class StepSummary(NamedTuple):
    """A training step in numbers that are equal on all ranks, for `Rule.next_state`."""

    step: int  # training step, from 1
    total_steps: int  # of the run
    reward: float  # mean over the step's completions
    accuracy: float  # fraction of correct completions
    # float, mean over completion tokens before the update [nats]; None with
    # optim.old_logprobs=rollout: a rule that reads it sets `needs_distributions`
    entropy: Any
    clip_fraction: float  # fraction of updated tokens that the loss clips
    approx_kl: float  # mean of old_logprob - logprob over updated tokens [nats]


class Rule(Section):
    """A rule (loss or advantage) that the configuration selects by name. Its fields are its
    parameters.
    """

    # whether it needs entropies or proxy log-probabilities
    needs_distributions: ClassVar[bool] = False
    name: str = ""

    def initial_state(self) -> RuleState:
        """Return the rule's state before the first step: named numbers, none by default.

        A rule receives its state as ``state`` of its inputs. A rule's object never changes.
        """
        return {}

    def next_state(self, state: RuleState, summary: StepSummary) -> RuleState:
        """Return the state for the next step, called once at the end of each step on all ranks.

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
        and line. Exceptions of built-in rules pass as they are.
        """
        return errors_located(self.name) if self.is_own else nullcontext()

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle a user-defined rule as its parameters and its module's folder: the process that
        reads it may run elsewhere.
        """
        if not self.is_own:
            return super().__reduce__()
        ancestors = (ancestor for ancestor in type(self).__mro__ if _is_ours(ancestor))
        return load_again, (self.name, next(ancestors), folder_of(self.name), self.model_dump())


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "trainer"
