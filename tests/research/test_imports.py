"""No study may rot: what it imports must exist."""

import importlib

import pytest

from tests.paths import ROOT


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "research").glob("*.py")))
def test_a_study_imports_names_that_exist(name):
    importlib.import_module(f"research.{name}")
