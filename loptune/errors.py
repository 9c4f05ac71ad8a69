"""User-facing errors: the fault, its place, and the next step."""

import math
from collections.abc import Sequence
from typing import Self

INTERRUPTED = 130  # exit code after an interruption that can be resumed


def first_line(error: BaseException) -> str:
    """Return the first non-empty line of an error's message, or its type name."""
    for line in str(error).splitlines():
        if line.strip():
            return line.strip()
    return type(error).__name__


def described(error: BaseException) -> str:
    """Return the type and the first line of an error: ``KeyError: 'answer'``. The type stands alone
    if the message is empty.
    """
    name = type(error).__name__
    line = first_line(error)
    return name if line == name else f"{name}: {line}"


def one_line(text: object, most: int = 300) -> str:
    """Collapse whitespace and truncate to ``most`` characters."""
    return " ".join(str(text).split())[:most]


def printable(text: str) -> str:
    """Escape control characters, so that model output cannot send terminal escape sequences."""
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    return character.encode("unicode_escape").decode()


def listed(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Join the first ``most`` names and count the remaining ones: ``a, b and 3 more``."""
    text = separator.join(names[:most])
    if len(names) > most:
        text += f" and {len(names) - most} more"
    return text


def joined(names: Sequence[str]) -> str:
    """Join all names for a sentence: ``a, b and c``. There must be at least one."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def shortened(text: str, most: int) -> str:
    """Truncate the text to ``most`` characters, ending in "..."."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


class UserError(Exception):
    """An error that the user can fix, printed as up to three lines and mapped to an exit code.

    ``what`` is the fault, ``where`` the file, key or resource at fault, and ``hint`` the next thing
    to type or change.
    ``code`` identifies the kind of problem in kebab case. It is printed at the end of the first
    line, and does not change with the wording. ``key`` is the dotted key of the setting at fault,
    if any.
    """

    exit_code = 2

    def __init__(
        self, what: str, where: str = "", hint: str = "", key: str = "", *, code: str = ""
    ) -> None:
        super().__init__(what, where, hint)
        self.what = what
        self.where = where
        self.hint = hint
        self.key = key
        self.code = code

    def with_hint(self, hint: str) -> Self:
        """Return a copy of the error with another hint."""
        return self._copy(hint=hint)

    def with_place(self, where: str) -> Self:
        """Return a copy of the error with another place."""
        return self._copy(where=where)

    def _copy(self, **changes: str) -> Self:
        copied = type(self).__new__(type(self))  # subclasses may have another constructor
        copied.__dict__.update(self.__dict__, **changes)
        copied.args = (copied.what, copied.where, copied.hint)
        return copied

    def __str__(self) -> str:
        lines = [f"error: {self.what} [{self.code}]" if self.code else f"error: {self.what}"]
        if self.where:
            lines.append(f"where: {self.where}")
        if self.hint:
            lines.append(f"next:  {self.hint}")
        return printable("\n".join(lines))


def warning_text(what: str, where: str, hint: str) -> str:
    """Return a warning as three lines, like an error: what happened, where, and what to do next."""
    return f"warning: {what}\nwhere:   {where}\nnext:    {hint}"


class ConfigError(UserError):
    """Usage or configuration error, exit code 2."""


class ProgramError(ConfigError):
    """The program of a run or its settings made the run fail, on any machine; exit code 2."""


class MissingError(UserError):
    """Missing resource, package, data or model file, exit code 3."""

    exit_code = 3


class StorageError(UserError):
    """Storage or tracking failure, exit code 4."""

    exit_code = 4


class NameInUseError(UserError):
    """The run or sweep name is in use by another process, exit code 5."""

    exit_code = 5


class StoppedError(UserError):
    """Runs were stopped in an orderly way and can be continued, exit code 130."""

    exit_code = INTERRUPTED


class RewardError(UserError):
    """Scoring failed for too many completions, or for the first problem's reference answer; exit
    code 2.
    """


class EngineError(UserError):
    """The rollout engine failed or its log-probabilities do not match the policy, exit code 3."""

    exit_code = 3


class DivergedError(Exception):
    """A loss, gradient norm, reward or log-probability (``quantity``) became NaN or infinite."""

    def __init__(self, step: int, quantity: str, value: float) -> None:
        super().__init__(step, quantity, value)
        self.step = step
        self.quantity = quantity
        self.value = value

    def __str__(self) -> str:
        return f"diverged at step {self.step}: {self.quantity} is {self.value}"


class CommandError(RuntimeError):
    """A command ended with an error code, and not for lack of memory."""


def check_finite(step: int, quantity: str, value: float) -> None:
    """Check that a value is finite. ``quantity`` is its name in the error.

    Raises:
        DivergedError: the value is NaN or infinite.
    """
    if not math.isfinite(value):
        raise DivergedError(step, quantity, value)
