import json
import subprocess

import pytest

from tests.paths import ROOT
from tests.warm import warm

pytest.importorskip("trl", reason="needs TRL: pip install 'loptune[trl]'")


def test_the_script_trains_with_both_rules_and_records_every_problem(tmp_path):
    short = (
        "--max_steps 2 --eval_steps 2 --save_steps 2 --per_device_train_batch_size 8 "
        "--max_completion_length 12"
    )
    options = f"{short} --ar_alpha 0.3 --lopti_eta 0.5 --output_dir {tmp_path}"
    command = warm("examples/trl/train.py", *options.split())
    subprocess.run(command, cwd=ROOT, check=True)
    (evaluation,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(evaluation)["step"] == 2
    sets = json.loads((tmp_path / "correctness.jsonl").read_text())["sets"]
    assert sets["eval"]["completions"] == 4 and len(sets["eval"]["correct"]) == 50
    assert (tmp_path / "checkpoint-4").is_dir()  # TRL counts both passes


def test_a_random_model_acts_in_an_environment(tmp_path):
    short = (
        "--max_steps 2 --eval_steps 2 --max_completion_length 16 --per_device_train_batch_size 16"
    )
    options = f"{short} --ar_alpha 0.3 --lopti_eta 0.1 --output_dir {tmp_path}"
    command = warm("examples/trl/environment.py", *options.split())
    subprocess.run(command, cwd=ROOT, check=True)
    (evaluation,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(evaluation)["eval/tools/call_frequency"] > 0
