"""Optional packages: the extras of pyproject.toml, what imports them, and what is said without."""

import ast
import re
import subprocess
import sys
import tomllib

import pytest

from loptune.errors import MissingError
from loptune.extras import EXTRA_OF, missing_extra, require
from tests.paths import ROOT
from tests.refusals import refused

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN = {"dashboards", "loptune", "rewards", "search_spaces", "sweep", "trainer"}
# package as it is imported -> distribution that brings it, if it is called otherwise
DISTRIBUTIONS = {
    "huggingface_hub": "transformers",
    "markupsafe": "jinja2",
    "math_verify": "math-verify",
    "numpy": "pandas",
    "pydantic_core": "pydantic",
    "sqlalchemy": "mlflow",
    "tokenizers": "transformers",
    "typing_extensions": "pydantic",
    "yaml": "pyyaml",
}
# trainers and trackers that a user brings, and what verl requires
CALLED_BY_US_ONLY = {"verl", "omegaconf", "tensordict", "transfer_queue", "trackio"}


def names(requirements):
    return {re.match(r"[\w-]+", requirement)[0] for requirement in requirements}


def imported_packages():
    found = set()
    for folder in sorted(OWN):
        for path in (ROOT / folder).rglob("*.py"):
            if path.parent.name in ("project", "rule_project"):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    found.add(node.module.partition(".")[0])
    return found - OWN - set(sys.stdlib_module_names) - CALLED_BY_US_ONLY


def test_every_imported_package_is_of_the_core_or_of_its_extra():
    core = names(PROJECT["dependencies"])
    for package in imported_packages():
        distribution = DISTRIBUTIONS.get(package, package)
        if package in EXTRA_OF:
            extra = PROJECT["optional-dependencies"][EXTRA_OF[package]]
            assert distribution in names(extra), package
        else:
            assert distribution in core, package


def test_a_missing_package_names_its_extra(monkeypatch):
    for package, extra in EXTRA_OF.items():
        monkeypatch.setitem(sys.modules, package, None)
        error = missing_extra(ModuleNotFoundError(name=f"{package}.inner"))
        assert isinstance(error, MissingError) and error.hint.endswith(f"'loptune[{extra}]'")
        with refused("missing-extra", MissingError, names=[f"loptune[{extra}]"]):
            require(package, "here")
    assert missing_extra(ModuleNotFoundError(name="my_rewards")) is None
    monkeypatch.setitem(sys.modules, "torch", sys)
    assert missing_extra(ModuleNotFoundError(name="torch")) is None


@pytest.mark.parametrize(
    ("words", "package"),
    [
        (("sweep", "run", "quickstart"), "ray"),
        (("sweep", "study", "none"), "optuna"),
        (("trainer", "run", "tiny_kk"), "torch"),
    ],
)
def test_a_command_without_its_extra_ends_before_it_writes(tmp_path, words, package):
    program, *rest = words
    code = (
        f"import sys; sys.modules[{package!r}] = None; "
        f"from {program}.cli import main; sys.exit(main({rest}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == MissingError.exit_code, ended.stderr
    assert "[missing-extra]" in ended.stderr and not list(tmp_path.iterdir())


def test_commands_of_the_core_import_no_extra():
    code = (
        "import sys, sweep.cli, sweep.api, dashboards.judging, dashboards.pages.report, "
        "sweep.gate.campaign, sweep.mcp_server, trainer.cli; "
        f"print(*({set(EXTRA_OF)!r} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ended.stdout.split()) <= {"pyarrow"}  # which pandas imports where it is installed
