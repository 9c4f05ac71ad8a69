"""Judge the runs of any program from Python: docs/guides/judge.md."""

from dashboards.judging import Judgement, judge
from loptune.shadowing import find_own_packages_first

find_own_packages_first()

__all__ = ["Judgement", "judge"]
