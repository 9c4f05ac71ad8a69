"""Training from Python, and the page that shows it."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import sweep
import trainer
from loptune.errors import ConfigError, MissingError
from tests.paths import ROOT
from tests.refusals import refused
from tests.trainer.test_loop import small_config
from tests.warm import warm
from trainer.config.schema import dump_config


def test_names_are_imported_at_their_first_use():
    heavy = ("torch", "pandas", "pydantic", "ray", "sympy", "math_verify")
    code = (
        f"import sys, trainer, sweep, rewards; print([name for name in {heavy} if name in "
        "sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    for package in (trainer, sweep):
        for name in package.__all__:
            assert getattr(package, name).__name__ == name
        with pytest.raises(AttributeError, match="'trian'"):
            package.trian  # noqa: B018


def test_train_says_how_it_ended_and_its_metrics_are_a_table(tiny_policy, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(dump_config(small_config(tiny_policy)))
    overrides = {"max_steps": 2, "tracking.offline": True}
    run = trainer.train(spec, overrides, name="first", runs_dir=tmp_path / "runs")
    assert (run.state, run.step, run.last_step) == ("done", 2, 2)
    table = trainer.load_metrics("first", tmp_path / "runs")
    assert table["rollout/reward"].dropna().size == 2
    assert table["eval/accuracy"].dropna().iloc[-1] == run.accuracy
    with refused("run-exists", ConfigError, names=("first",)):
        trainer.train(spec, overrides, name="first", runs_dir=tmp_path / "runs")
    run = trainer.train(
        spec, {**overrides, "max_steps": 3}, name="first", runs_dir=tmp_path / "runs", resume=True
    )
    assert (run.state, run.step) == ("done", 3)
    with refused("no-such-run", MissingError, names=("second",)):
        trainer.load_metrics("second", tmp_path / "runs")


def test_a_thread_of_a_program_with_its_own_output_trains(tiny_policy, tmp_path, monkeypatch):
    class Log:
        """What research code puts in the place of a stream: ``write`` and ``flush`` only."""

        text = ""

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    log = Log()
    monkeypatch.setattr("sys.stdout", log)
    monkeypatch.setattr("sys.stderr", None)
    spec = tmp_path / "spec.yaml"
    spec.write_text(dump_config(small_config(tiny_policy)))
    overrides = {"max_steps": 1, "tracking.offline": True}
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(
            trainer.train, spec, overrides, name="in-thread", runs_dir=tmp_path / "runs"
        )
        assert training.result().state == "done"
    assert "step 1/1" in log.text


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_page_runs_as_it_stands(tmp_path):
    blocks = re.findall(
        r"```python\n(.*?)```",
        (ROOT / "docs/guides/python.md").read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert len(blocks) == 3
    script = tmp_path / "page.py"
    script.write_text(
        "if __name__ == '__main__':\n"
        + "".join(f"    {line}\n" for line in "\n".join(blocks).split("\n"))
    )
    done = subprocess.run(warm(script), cwd=tmp_path, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stderr
    assert "done 0." in done.stdout
    assert re.search(r"^0\.3 +0\.\d+$", done.stdout, re.MULTILINE)  # the mean score of AR's trials
    assert len((tmp_path / "runs" / "first" / "events.jsonl").read_text().splitlines()) > 8
    assert not (tmp_path / "runs" / "by_hand" / "tracking.json").exists()
