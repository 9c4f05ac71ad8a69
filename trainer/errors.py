"""Errors meant for the person at the keyboard: what is wrong, where, and what to type next."""

import math

INTERRUPTED = 130  # exit code of what was stopped and can be resumed


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, the error's name where it has none."""
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)


def one_line(text: object, most: int = 300) -> str:
    """Return the text, or its beginning, in one line."""
    return " ".join(str(text).split())[:most]


def printable(text: str) -> str:
    """Return the text with control characters as escapes: what a model wrote must not command a
    terminal.
    """
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


def shortened(text: str, most: int) -> str:
    """Return the text, or as much of it as fits ``most`` characters with dots behind it."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


class UserError(Exception):
    """A problem the user can solve, printed as three lines and turned into an exit code.

    ``where`` is the file, key or resource that has it, ``hint`` the next thing to type or change.
    """

    exit_code = 2

    def __init__(self, what: str, where: str = "", hint: str = "") -> None:
        super().__init__(what, where, hint)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        lines = [f"error: {self.what}"]
        if self.where:
            lines.append(f"where: {self.where}")
        if self.hint:
            lines.append(f"next:  {self.hint}")
        return printable("\n".join(lines))


class ConfigError(UserError):
    """Usage or configuration: exit code 2; ``key`` is the dotted key that is refused, if it
    is one.
    """

    def __init__(self, what: str, where: str = "", hint: str = "", key: str = "") -> None:
        super().__init__(what, where, hint)
        self.key = key


class MissingError(UserError):
    """Resources, data or model files that are not there: exit code 3."""

    exit_code = 3


class StorageError(UserError):
    """Storage or tracking that does not work: exit code 4."""

    exit_code = 4


class NameHeldError(UserError):
    """A name another process is using: exit code 5."""

    exit_code = 5


class RewardError(UserError):
    """Scoring fails too often for the rewards to mean anything."""


class EngineError(UserError):
    """The rollout engine does not start, fails, or disagrees with the policy: exit code 3."""

    exit_code = 3


class DivergedError(Exception):
    """The loss or the gradient norm stopped being a finite number."""

    def __init__(self, step: int, quantity: str, value: float) -> None:
        super().__init__(step, quantity, value)
        self.step = step
        self.quantity = quantity
        self.value = value

    def __str__(self) -> str:
        return f"diverged at step {self.step}: {self.quantity} is {self.value}"


def check_finite(step: int, quantity: str, value: float) -> None:
    """Raise `DivergedError` unless the value is a finite number."""
    if not math.isfinite(value):
        raise DivergedError(step, quantity, value)
