"""A check that has passed is not repeated by a run with the same inputs, and by no other."""

import json
import logging
import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from loptune.errors import StorageError
from tests.refusals import refused
from tests.trainer.load_check.runs import PROBLEMS, Run, saved
from trainer import load_check
from trainer.load_check.passed import PassedChecks


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("model"))


@pytest.fixture
def checked(tmp_path, model, monkeypatch):
    """Return a function that starts a run, and tells whether it was checked."""
    calls = []
    compare = load_check._compare_paths

    def counted(config, run, short):
        calls.append(config)
        return compare(config, run, short)

    monkeypatch.setattr(load_check, "_compare_paths", counted)

    def start(folder=model, problems=PROBLEMS, change=None, **overrides):
        run = Run(folder, **overrides)
        run.problems = problems
        if change is not None:
            change(run)
        calls.clear()
        run.check(passed_checks=tmp_path / "passed")
        return len(calls) == 1

    return start


def test_a_run_with_the_same_inputs_is_not_checked_again(checked, caplog):
    assert checked()
    with caplog.at_level(logging.INFO):
        assert not checked()
    assert "load check: passed by" in caplog.text


@pytest.mark.parametrize(
    "overrides",
    [
        {"seed": 3},
        {"optim.lr": 1e-3},
        {"algorithm.ar_alpha": 0.3},
        {"algorithm.advantage": "gdpo"},
        {"max_steps": 7},
        {"evaluation.every_steps": 5},
    ],
    ids=lambda overrides: next(iter(overrides)),
)
def test_settings_of_the_update_do_not_matter(checked, overrides):
    assert checked()
    assert not checked(**overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        {"rollout.temperature": 0.7},
        {"rollout.max_new_tokens": 14},
        {"evaluation.max_new_tokens": 20},
        {"model.lora.r": 2},
        {"model.attn_implementation": "eager"},
        {"model.packing": True},
        {"model.gradient_checkpointing": True},
        {"rollout.top_p": 0.9},
    ],
    ids=lambda overrides: next(iter(overrides)),
)
def test_settings_of_model_and_sampling_do(checked, overrides):
    assert checked()
    assert checked(**overrides)
    assert not checked(**overrides)


def rewrite(name):
    def change(folder):
        file = folder / name
        content = bytearray(file.read_bytes())
        file.unlink()
        file.write_bytes(content)

    return change


def add_generation_settings(folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))


@pytest.mark.parametrize(
    "change",
    [rewrite("model.safetensors"), rewrite("tokenizer.json"), add_generation_settings],
    ids=["weights", "tokenizer", "generation settings"],
)
def test_files_of_the_model_matter(checked, model, tmp_path, change):
    folder = shutil.copytree(model, tmp_path / "copy")
    assert checked(folder)
    assert not checked(folder)
    change(folder)
    assert checked(folder)


def test_problems_matter(checked):
    assert checked()
    assert checked(problems=[replace(PROBLEMS[0], answer="5"), *PROBLEMS[1:]])
    assert checked(problems=[*PROBLEMS, replace(PROBLEMS[0], prompt="9 - 5 =")])


@pytest.mark.parametrize("at", ["record", "folder"])
def test_a_record_that_cannot_be_written_is_a_storage_error(tmp_path, at):
    parallel = SimpleNamespace(is_main=False)
    passed = PassedChecks(None, None, SimpleNamespace(parallel=parallel), [])
    passed._record = tmp_path / "checks" / "one.txt"
    if at == "folder":
        passed._record.parent.write_text("")
    else:
        passed._record.mkdir(parents=True)
    with refused("not-written", StorageError):
        passed.add(tmp_path)


def test_a_check_that_fails_is_repeated(checked):
    def lose_weights(run):
        with torch.no_grad():
            run.models.causal_lm.model.layers[1].self_attn.q_proj.weight.zero_()

    for _ in range(2):
        with refused("paths-differ"):
            checked(change=lose_weights)
    assert checked()
