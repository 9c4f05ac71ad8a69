"""Skips this folder where the trainers of trainers.txt are not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("verl") else ["test_*.py"]
