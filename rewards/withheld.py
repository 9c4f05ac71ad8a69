"""Environment variables whose names or values look like secrets, which are passed to scoring only
if the configuration lists them.
"""

import os
import re
from collections.abc import Iterable, Mapping

_SECRET = re.compile(r"(^|_)(PASSWORD|PASSWD|SECRET|TOKEN|KEY|CREDENTIALS?)(_|$)", re.IGNORECASE)
_URL_WITH_PASSWORD = re.compile(r"://[^/\s]*:[^/\s]*@")


def split_environment(
    variables: Mapping[str, str], named: Iterable[str]
) -> tuple[dict[str, str], list[str]]:
    """Return the variables for scoring, and the names of the withheld ones: secrets that are not
    ``named``.
    """
    passed_on = {}
    withheld = []
    allowed = set(named)
    for name, value in variables.items():
        is_secret = _SECRET.search(name) or _URL_WITH_PASSWORD.search(value)
        if is_secret and name not in allowed:
            withheld.append(name)
        else:
            passed_on[name] = value
    return passed_on, withheld


class WithheldVariables:
    """Record of the withheld variables that this process looks up after the record is created.

    It explains failures: a reward without its API key may raise any exception, or return 0 for
    every completion.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._asked_for: set[str] = set()
        note = self._note
        plain = type(os.environ)

        class Noting(plain):  # type: ignore[misc,valid-type]
            def __getitem__(self, key: str) -> str:
                note(key)
                value: str = super().__getitem__(key)
                return value

        # change the class in place: modules may already have imported the object
        os.environ.__class__ = Noting

    def asked_for(self) -> list[str]:
        """Return the names of the variables that were looked up, sorted."""
        return sorted(self._asked_for)

    def look_in(self, message: str) -> None:
        """Note the names that an error message contains: a child process may have used them."""
        self._asked_for.update(self._names.intersection(re.findall(r"\w+", message)))

    def _note(self, key: object) -> None:
        if key in self._names:
            self._asked_for.add(str(key))
