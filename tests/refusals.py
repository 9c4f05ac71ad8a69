"""Ask an error for its code, which stays the same when its wording changes."""

from contextlib import contextmanager

import pytest
from pydantic import ValidationError

from loptune.errors import UserError


@contextmanager
def refused(code, kind=UserError, key=None, names=()):
    """Expect an error of ``kind`` with this code (and key); yield pytest's record of it.

    ``names`` are data that the message must contain, such as files, keys and numbers.
    """
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, str(caught.value)
    if key is not None:
        assert caught.value.key == key, str(caught.value)
    for name in names:
        assert name in str(caught.value)


@contextmanager
def setting_refused(code, names=()):
    """Expect a validation error whose first fault has this code and whose text has ``names``."""
    with pytest.raises(ValidationError) as caught:
        yield caught
    first = caught.value.errors()[0]
    assert first["type"] == code, str(caught.value)
    for name in names:
        assert name in first["msg"]
