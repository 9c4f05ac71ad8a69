"""Base class of update rules: an equation with its parameters."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from trainer.rules.own import errors_located, folder_of, load_again
from trainer.section import Section


class Rule(Section):
    """A rule (loss or advantage) that the configuration selects by name. Its fields are its
    parameters.
    """

    # whether it needs entropies or proxy log-probabilities
    needs_distributions: ClassVar[bool] = False
    name: str = ""

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
