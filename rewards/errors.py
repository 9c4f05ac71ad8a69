"""Errors of reward functions, answers and users' code."""


class CodedValueError(ValueError):
    """A value, function or setting that cannot be used.

    ``code`` identifies the kind of fault in kebab case; it stays the same when the wording changes.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code
