"""What a newcomer types: the tutorials and the notebook run as they stand, made small where
training takes long.
"""

import json
import os
import re
import subprocess

import pytest

from tests.paths import ROOT
from tests.run_cli import ENVIRONMENT
from tests.warm import warm_programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def run(command, folder):
    """The output of a command that ends well, where `python`, `trainer` and `sweep` are this
    copy's, and warm.
    """
    path = f"{warm_programs()}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **ENVIRONMENT, "PATH": path}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def type_page(name, folder, smaller):
    """The output of all commands of a page."""
    page = (ROOT / "docs/start" / name).read_text(encoding="utf-8")
    script = "\n".join(re.findall(r"```bash\n(.*?)```", page, re.DOTALL))
    for whole, part in smaller.items():
        assert whole in script
        script = script.replace(whole, part)
    return run(["bash", "-euc", script], folder)


def test_train_your_own(tmp_path):
    output = type_page("train_your_own.md", tmp_path, {})
    assert "1 passed" in output and "What is" in output
    assert {"config.json", "model.safetensors", "README.md"} <= {
        file.name for file in (tmp_path / "mine/model-out").iterdir()
    }


def test_compare_rules(tmp_path):
    smaller = {
        "configurations: 8": "configurations: 2",
        "{max_steps: 30}": "{max_steps: 2, evaluation.every_steps: 1, evaluation.sets.dev.limit: "
        "10}",
        "--seeds 8": "--seeds 2",
        "loguniform: [1.0e-4, 1.0e-3]": "choice: [1.0e-4, 1.0e-3]",
    }
    output = type_page("compare_rules.md", tmp_path, smaller)
    # the search, and the fresh seeds
    assert output.count("4 complete, 0 stopped early, 0 failed") >= 2
    for file in ("ar-confirm/events.jsonl", "ar/report/report.html", "check/metrics.jsonl"):
        assert (tmp_path / "compare/runs" / file).exists()


def test_the_notebook(tmp_path):
    notebook = json.loads((ROOT / "docs/quickstart.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    script = "\n".join(f"    {line}" for line in "\n".join(cells).splitlines())
    # Jupyter runs cells inside of an event loop.
    (tmp_path / "notebook.py").write_text(
        f"import asyncio\n\n\nasync def cells():\n{script}\n\n\n"
        "if __name__ == '__main__':\n    asyncio.run(cells())\n",
        encoding="utf-8",
    )
    output = run(["python", "notebook.py"], tmp_path)
    assert output.count("COMPLETE") == 4
    assert "baseline" in output and "done [" in output
