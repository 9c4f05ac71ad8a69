"""`trainer export`: the model of a run for others, with its card."""

import copy
import json
import shutil

import pytest
import torch
import yaml
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.trainer.test_loop import small_config
from trainer import train
from trainer.config.schema import dump_config, load_config
from trainer.evaluation.correctness import read_correctness
from trainer.evaluation.estimators import accuracy_interval


def trained(policy, folder, changes):
    """A folder of runs with one of two steps."""
    config = small_config(policy, **{"max_steps": 2, "tracking.offline": True, **changes})
    (folder / "spec.yaml").write_text(dump_config(config))
    train(folder / "spec.yaml", name="first", runs_dir=folder / "runs")
    return folder / "runs"


@pytest.fixture(scope="module")
def runs(tiny_policy, tmp_path_factory):
    """A checkpoint after each of two steps."""
    changes = {"evaluation.every_steps": 1, "checkpoint.every_steps": 1, "checkpoint.keep_last": 2}
    return trained(tiny_policy, tmp_path_factory.mktemp("runs"), changes)


@pytest.fixture
def export(typed):
    def carry_out(runs, output, *options, code=0):
        line = f"trainer export first --runs-dir {runs} --output {output}"
        return typed(line, *options, code=code)

    return carry_out


def dtypes_in(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {str(file.get_tensor(name).dtype) for name in file.keys()}  # noqa: SIM118


def test_weights_have_the_dtype_of_the_base_unless_another_is_given(tiny_policy, export, tmp_path):
    base = tmp_path / "base"
    AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.bfloat16).save_pretrained(base)
    AutoTokenizer.from_pretrained(tiny_policy).save_pretrained(base)
    ends = AutoTokenizer.from_pretrained(tiny_policy).eos_token_id
    settings = {"eos_token_id": [7, ends], "do_sample": True, "temperature": 0.6}
    (base / "generation_config.json").write_text(json.dumps(settings))
    changes = {"model.name_or_path": str(base), "rollout.stop_token_ids": [9]}
    runs = trained(tiny_policy, tmp_path, changes)
    export(runs, tmp_path / "auto")
    assert dtypes_in(tmp_path / "auto") == {"torch.bfloat16"}
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "auto").dtype == torch.bfloat16
    generation = json.loads((tmp_path / "auto" / "generation_config.json").read_text())
    assert sorted(generation["eos_token_id"]) == sorted([7, 9, ends])
    assert generation["temperature"] == 0.6
    export(runs, tmp_path / "wide", "--dtype", "float32")
    assert dtypes_in(tmp_path / "wide") == {"torch.float32"}
    shutil.rmtree(base)
    assert "--dtype" in export(runs, tmp_path / "lost", code=3)
    export(runs, tmp_path / "narrow", "--dtype", "bfloat16")
    assert dtypes_in(tmp_path / "narrow") == {"torch.bfloat16"}


def test_the_folder_loads_in_transformers_without_training_state(runs, export, tmp_path):
    assert "step 2" in export(runs, tmp_path / "model")
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"README.md", "run.yaml", "config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not [name for name in names if name.startswith(("training_state", "manifest"))]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    saved = AutoModelForCausalLM.from_pretrained(
        runs / "first" / "checkpoints" / "step-2", dtype=torch.float32
    )
    for ours, theirs in zip(model.parameters(), saved.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "model")) > 10
    assert load_config(str(tmp_path / "model" / "run.yaml")) == load_config(
        str(runs / "first" / "config.yaml")
    )


def test_the_card_has_front_matter_and_the_score_of_that_step(runs, export, tmp_path):
    export(runs, tmp_path / "model", "--step", "1")
    _, front, text = (tmp_path / "model" / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["library_name"] == "transformers"
    assert "base_model" not in yaml.safe_load(front)  # the start was a folder of this machine
    fractions, completions = read_correctness(runs / "first" / "correctness.jsonl")["dev"][1]
    low, high = accuracy_interval(fractions, [completions] * len(fractions))
    interval = f"{low:.3f} to {high:.3f}"
    row = f"| dev | {len(fractions)} | {completions} | {fractions.mean():.3f} | {interval} |"
    assert row in text
    assert "after 1 steps" in text


def test_a_folder_is_exported_under_its_name(runs, typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    typed("trainer export", runs / "first")
    assert (tmp_path / "first-model" / "model.safetensors").is_file()


def test_what_cannot_be_exported_leaves_nothing(runs, export, tmp_path):
    assert "available: 1, 2" in export(runs, tmp_path / "model", "--step", "7", code=3)
    export(runs, tmp_path / "model", "--merge", code=2)
    (tmp_path / "taken").mkdir()
    export(runs, tmp_path / "taken", code=2)
    copy = tmp_path / "runs"
    shutil.copytree(runs, copy)
    weights = copy / "first" / "checkpoints" / "step-2" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    assert "damaged: model.safetensors" in export(copy, tmp_path / "model", code=4)
    assert not list(tmp_path.glob("model*"))


def test_a_run_that_was_not_evaluated_at_the_step_says_so(runs, export, tmp_path):
    copy = tmp_path / "runs"
    shutil.copytree(runs, copy)
    lines = (copy / "first" / "correctness.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] != 2]
    (copy / "first" / "correctness.jsonl").write_text("".join(kept))
    export(copy, tmp_path / "model")
    assert "was not evaluated at step 2" in (tmp_path / "model" / "README.md").read_text()


@pytest.fixture(scope="module")
def adapter_runs(tiny_policy, tmp_path_factory):
    changes = {"model.lora.r": 4, "optim.lr": 1e-2}
    return trained(tiny_policy, tmp_path_factory.mktemp("adapters"), changes)


def test_an_adapter_is_exported_alone_or_merged_into_the_whole_model(
    adapter_runs, export, tiny_policy, tmp_path
):
    export(adapter_runs, tmp_path / "adapter")
    export(adapter_runs, tmp_path / "whole", "--merge")
    card = (tmp_path / "adapter" / "README.md").read_text()
    assert "library_name: peft" in card
    assert "library_name: transformers" in (tmp_path / "whole" / "README.md").read_text()
    assert not list((tmp_path / "whole").glob("adapter_*"))
    assert not list((tmp_path / "adapter").glob("model*"))
    base = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32)
    before = copy.deepcopy(base)
    expected = PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload()
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", dtype=torch.float32)
    pairs = list(zip(whole.parameters(), expected.parameters(), before.parameters(), strict=True))
    assert max(float((ours - theirs).abs().max()) for ours, theirs, _ in pairs) < 1e-5
    assert max(float((ours - start).abs().max()) for ours, _, start in pairs) > 1e-3
    assert len(AutoTokenizer.from_pretrained(tmp_path / "whole")) > 10


def test_the_hashes_of_reward_and_data_come_with_the_model(
    tiny_policy, typed, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge.py").write_text("def exact(text, answer): return 0.0\n")
    changes = {"tracking.offline": True, "reward.functions": {"judge:exact": 1.0}, "max_steps": 1}
    (tmp_path / "spec.yaml").write_text(dump_config(small_config(tiny_policy, **changes)))
    run = train("spec.yaml")
    typed(f"trainer export {run.name} --output model --runs-dir runs")
    assert "| judge.py | reward judge:exact | " in (tmp_path / "model" / "README.md").read_text()
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in (tmp_path / "model").rglob("*"))
