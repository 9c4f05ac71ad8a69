"""`import loptune as lt`: every public name, without heavy imports, in any folder."""

import doctest
import subprocess
import sys
import tomllib

import pytest

import loptune as lt
from loptune.shadowing import LOPTUNE_PACKAGES
from tests.hidden_packages import hide_our_packages
from tests.paths import ROOT

TINY_RUN = """
import loptune as lt

if __name__ == "__main__":
    sizes = {
        "max_steps": 1,
        "rollout.prompts_per_step": 1,
        "rollout.group_size": 2,
        "rollout.max_new_tokens": 4,
        "optim.update_batch_size": 2,
        "data.train": {"size": 4},
        "evaluation.sets": {"dev": {"split": "dev", "size": 2}},
        "tracking.offline": True,
    }
    run = lt.train("tiny_kk", sizes, name="first")
    print(run.state, len(lt.load_metrics("first")))
    scores = [0.1, 0.2, 0.3, 0.5, 0.6, 0.8]
    table = lt.load_metrics("first").iloc[[0] * 6].assign(
        rule=["a", "a", "a", "b", "b", "b"], seed=[0, 1, 2] * 2, score=scores, step=1
    )
    print(lt.judge(table[["rule", "seed", "score"]], by=["rule"], baseline={"rule": "a"},
                   score="score", seed="seed", fresh=True))
"""


def run(folder, program, **options):
    (folder / "mine.py").write_text(program)
    return subprocess.run(
        [sys.executable, "mine.py"], cwd=folder, capture_output=True, text=True, **options
    )


def test_every_name_is_found_and_documented():
    for name in lt.__all__:
        value = getattr(lt, name)
        assert value.__doc__, name
    assert set(lt.__all__) <= set(dir(lt))
    page = (ROOT / "docs/reference/python_api.md").read_text(encoding="utf-8")
    assert [name for name in lt.__all__ if f"`lt.{name}`" not in page] == []
    with pytest.raises(AttributeError, match="'trian'"):
        lt.trian  # noqa: B018


def test_importing_it_imports_nothing_heavy():
    heavy = ("torch", "pandas", "pydantic", "ray", "numpy", "trainer", "sweep", "dashboards")
    code = f"import sys, loptune; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_files_named_like_our_packages_shadow_nothing(tmp_path):
    hide_our_packages(tmp_path)
    done = run(
        tmp_path,
        "import loptune as lt\n"
        "print(lt.train.__module__, lt.sweep.__module__, lt.judge.__module__)\n",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["trainer.api", "sweep.api", "sweep.commands.judge"]


@pytest.mark.slow
def test_a_run_and_a_verdict_beside_such_files(tmp_path):
    hide_our_packages(tmp_path)
    done = run(tmp_path, TINY_RUN)
    assert done.returncode == 0, done.stderr
    assert "done " in done.stdout and (tmp_path / "runs/first/metrics.jsonl").exists()


def test_a_file_that_was_imported_in_place_of_ours_is_named(tmp_path):
    (tmp_path / "trainer.py").write_text("steps = 3\n")
    done = run(tmp_path, "import trainer\nimport loptune as lt\nlt.train\n")
    assert done.returncode == 1
    assert "[shadowed]" in done.stderr and str(tmp_path / "trainer.py") in done.stderr
    done = run(tmp_path, "import loptune as lt\nlt.train\nimport trainer\ntrainer.steps\n")
    assert done.returncode == 1
    assert "[shadowed]" in done.stderr and str(tmp_path / "trainer.py") in done.stderr


@pytest.mark.parametrize("package", ["sweep", "dashboards", "trainer"])
def test_each_package_finds_the_others_and_names_a_file_in_their_place(tmp_path, package):
    name = {"sweep": "run", "dashboards": "judge", "trainer": "train"}[package]
    other = "rewards" if package == "trainer" else "trainer"
    (tmp_path / f"{other}.py").write_text("steps = 3\n")
    done = run(tmp_path, f"from {package} import {name}\nimport loptune.errors\n")
    assert done.returncode == 0, done.stderr
    done = run(tmp_path, f"import {other}\nfrom {package} import {name}\n")
    assert done.returncode == 1
    assert "[shadowed]" in done.stderr and str(tmp_path / f"{other}.py") in done.stderr


def test_the_list_of_our_packages_has_what_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert set(LOPTUNE_PACKAGES) == {name.removesuffix("*") for name in included}


@pytest.mark.parametrize("name", [name for name in lt.__all__ if name != "gate"])
def test_examples_of_docstrings_run_as_they_stand(name, tmp_path, monkeypatch):
    """An example of a docstring prints what stands below it."""
    monkeypatch.chdir(tmp_path)
    tests = doctest.DocTestFinder(recurse=False).find(getattr(lt, name), name, globs={})
    results = [doctest.DocTestRunner().run(test) for test in tests]
    assert [result.failed for result in results] == [0] * len(results)


def test_the_functions_of_commands_have_examples():
    assert ">>> lt.report(" in lt.report.__doc__
    assert "lt.judge(" in lt.judge.__doc__
