"""Places in the repository that tests read."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
SEARCH_SPACES = ROOT / "search_spaces"
