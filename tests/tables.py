"""Tables of cases, which are data: each is a file in tests/data."""

from typing import Any

import yaml

from tests.paths import DATA


def table(name: str) -> Any:
    """Return what a table holds: rows of arguments for a test, or settings by name."""
    return yaml.safe_load((DATA / f"{name}.yaml").read_text("utf-8"))
