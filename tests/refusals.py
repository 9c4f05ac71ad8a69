"""Ask an error for its code, which stays the same when its wording changes."""

from contextlib import contextmanager

import pytest

from trainer.errors import UserError


@contextmanager
def refused(code, kind=UserError, key=None):
    """Expect a `UserError` with this code (and key); yield pytest's record of it."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.code == code, str(caught.value)
    if key is not None:
        assert caught.value.key == key, str(caught.value)
