from pathlib import Path

import pytest

from tests.trainer.tracking.store import sqlite_store


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return sqlite_store(tmp_path)
