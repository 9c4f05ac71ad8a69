import json
import subprocess
import sys

import pytest

from tests.paths import ROOT

pytest.importorskip("trl", reason="needs TRL: pip install 'loptune[trl]'")


def test_the_script_trains_with_both_rules_and_records_every_problem(tmp_path):
    settings = {"max_steps": 2, "eval_steps": 2, "save_steps": 2, "per_device_train_batch_size": 8}
    settings |= {"max_completion_length": 12, "ar_alpha": 0.3, "lopti_eta": 0.5, "output_dir": tmp_path}
    options = [text for key, value in settings.items() for text in (f"--{key}", str(value))]
    subprocess.run([sys.executable, ROOT / "examples/trl/train.py", *options], cwd=ROOT, check=True)
    (evaluation,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(evaluation)["step"] == 2
    sets = json.loads((tmp_path / "correctness.jsonl").read_text())["sets"]
    assert sets["eval"]["completions"] == 4 and len(sets["eval"]["correct"]) == 50
    assert (tmp_path / "checkpoint-4").is_dir()  # TRL counts both passes
