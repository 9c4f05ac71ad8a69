"""The base of update rules: an equation with its parameters in one frozen class."""

from typing import Any, ClassVar

from trainer.rules.own import load_again
from trainer.section import Section


class Rule(Section):
    """A part of an update rule that a configuration chooses by name; its fields are its
    parameters.
    """

    # whether it reads entropies or a proxy's log-probabilities
    needs_distributions: ClassVar[bool] = False
    own: ClassVar[tuple[Any, ...] | None] = None  # of a user's rule: arguments of `load_rule`

    name: str = ""

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Send a user's rule to another process as its parameters and the folder of its module."""
        if self.own is not None:
            return load_again, (self.own, self.model_dump())
        return super().__reduce__()
