"""A disk of a few MB, which a test can fill."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.chaos import small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 12 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_disk(folder, 12) as mounted:
        if not mounted:
            pytest.skip("only root may mount a disk of a few MB")
        yield folder
