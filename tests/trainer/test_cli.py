import os
import subprocess
import sys

import pytest
import torch

from loptune.errors import MissingError
from tests.paths import ROOT
from tests.refusals import refused
from tests.run_cli import ENVIRONMENT
from trainer.cli import main
from trainer.config.model import ModelConfig
from trainer.policy.load import load_policy

TINY_RUN = [
    "max_steps=1",
    "evaluation.every_steps=1",
    "checkpoint.every_steps=1",
    "evaluation.sets={dev: {split: dev, size: 2}}",
    "rollout.prompts_per_step=1",
    "rollout.group_size=2",
    "rollout.max_new_tokens=4",
    "optim.update_batch_size=2",
    "data.train={size: 4}",
]


def run(tmp_path, *words):
    return main(["run", "tiny_kk", "--runs-dir", str(tmp_path / "runs"), "--offline", *words])


def error_lines(capsys):
    return capsys.readouterr().err.strip().splitlines()


@pytest.mark.parametrize(
    ("words", "code", "what", "hint"),
    [
        (
            ["algorithm.ar_alpa=0.3"],
            2,
            "unknown key algorithm.ar_alpa",
            "did you mean algorithm.ar_alpha?",
        ),
        (
            ["algorithm.ar_alpha=2"],
            2,
            "algorithm.ar_alpha: Input should be less than or equal to 1, got 2",
            "trainer options algorithm.ar_alpha",
        ),
        (["--name", "../x"], 2, "invalid name", ""),
    ],
)
def test_usage_errors_are_three_lines_and_write_nothing(tmp_path, capsys, words, code, what, hint):
    assert run(tmp_path, *words) == code
    error, where, next_step = error_lines(capsys)
    assert error.startswith("error: ") and what in error
    assert where.startswith("where: ")
    assert next_step.startswith("next:  ") and hint in next_step
    assert not (tmp_path / "runs").exists()


def test_a_run_without_weights_or_with_pickled_ones_is_refused(tmp_path, capsys, tiny_policy):
    folder = tmp_path / "pickled"
    folder.mkdir()
    for file in tiny_policy.iterdir():
        if file.suffix == ".json":
            (folder / file.name).write_bytes(file.read_bytes())
    marker = tmp_path / "executed"
    # a pickle that would touch the marker when loaded: os.system("touch marker")
    (folder / "pytorch_model.bin").write_bytes(f"cos\nsystem\n(S'touch {marker}'\ntR.".encode())
    assert run(tmp_path, "--name", "r", f"model.name_or_path={folder}", *TINY_RUN) == 3
    assert any("[no-weights]" in line for line in error_lines(capsys))
    # whoever loads it without having looked
    with refused("model-unreadable", MissingError):
        load_policy(ModelConfig(name_or_path=str(folder)), torch.device("cpu"))
    assert not marker.exists()


def test_a_reader_that_has_gone_ends_the_output_without_a_trace():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "trainer", "options"]
    environment = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(
        command, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("program", "words", "light"),
    [("trainer", "['']", ""), ("sweep", "['']", ""), ("trainer", "cli.COMMANDS", "n")],
)
def test_help_waits_for_no_heavy_import(program, words, light):
    heavy = {
        "torch",
        "transformers",
        "ray",
        "optuna",
        "mlflow",
        *(() if light else ("numpy", "scipy")),
    }
    code = (
        f"import sys; from {program} import cli\n"
        f"for word in {words}: cli.build_parser(*[[word]] if word else ()).format_help()\n"
        f"print({heavy} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "set()\n"
