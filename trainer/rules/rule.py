"""Base class of update rules: an equation with its parameters."""

from typing import Any, ClassVar

from trainer.rules.own import load_again
from trainer.section import Section


class Rule(Section):
    """A rule (loss or advantage) that the configuration selects by name. Its fields are its
    parameters.
    """

    # whether it needs entropies or proxy log-probabilities
    needs_distributions: ClassVar[bool] = False
    # for a user-defined rule: the arguments of `load_rule`
    own: ClassVar[tuple[Any, ...] | None] = None

    name: str = ""

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle a user-defined rule as its parameters and its module's folder."""
        if self.own is not None:
            return load_again, (self.own, self.model_dump())
        return super().__reduce__()
