import pickle
import re
import subprocess
import sys

import pytest
import torch

from loptune.errors import ConfigError
from tests.refusals import setting_refused
from tests.tables import table
from tests.trainer.algorithm.batches import loss_inputs
from trainer.algorithm.loss import update_loss
from trainer.algorithm.rule_check import check_rules
from trainer.config.algorithm import AlgorithmConfig
from trainer.config.schema import TrainConfig, apply_overrides, dotted_values
from trainer.rules.interface import UpdateTotals
from trainer.rules.kinds import LOSS
from trainer.tracking.inputs import input_files, record_inputs, recorded_files

HEAD = """import threading
import time
import torch
from trainer.rules import AdvantageInputs, LossInputs, NonNegative, PolicyLoss, TokenLosses
from pydantic import Field
"""
RIGHT = """
class Cautious(PolicyLoss):
    strength: NonNegative = Field(0.5, description="how much")

    def __call__(self, tokens):
        ratio = tokens.log_ratio.exp()
        return -tokens.advantages * ratio.clamp(max=1 + self.strength)


def median_baseline(inputs):
    return inputs.rewards - inputs.rewards.median()
"""
GSPO = """
class Gspo(PolicyLoss):
    sequence_level = True
    aggregations = ("seq_mean_token_mean",)

    def __call__(self, tokens):
        mask = tokens.completion_mask
        log_ratio = ((tokens.logprobs - tokens.old_logprobs) * mask).sum(1, True)
        mean = log_ratio / mask.sum(1, True).clamp(min=1)
        ratio = (tokens.logprobs - tokens.logprobs.detach() + mean.detach().clamp(-20, 20)).exp()
        unclipped = -tokens.advantages * ratio
        return torch.maximum(unclipped, -tokens.advantages * ratio.clamp(1 - 3e-4, 1 + 4e-4))
"""
RULE = "class Rule(PolicyLoss):\n    def __call__(self, tokens):\n        "
BROKEN = table("broken_rules")


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a module of rules into the folder of the run."""
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(HEAD + text)
        return str(tmp_path / f"{name}.py")

    return write


def test_a_custom_rule_has_parameters_and_can_be_pickled_and_dumped(written):
    written("right_rules", RIGHT)
    rule = {"name": "right_rules:Cautious", "strength": 0.25}
    config = AlgorithmConfig(loss=rule, advantage="right_rules:median_baseline", lopti_eta=0.5)
    check_rules(config)
    assert config.loss.strength == 0.25
    assert (
        pickle.loads(pickle.dumps(config))
        == config
        == AlgorithmConfig(**config.model_dump(mode="json"))
    )
    with setting_refused(
        "unknown-parameter", names=("right_rules:Cautious", "strenght", ": strength")
    ):
        AlgorithmConfig(loss={"name": "right_rules:Cautious", "strenght": 1})


def test_a_custom_rule_is_an_input_and_a_parameter_of_the_run(written, tmp_path):
    file = written("hashed_rules", RIGHT)
    config = apply_overrides(
        TrainConfig(), {"algorithm.loss": "hashed_rules:Cautious", "algorithm.loss.strength": 2}
    )
    record_inputs(tmp_path, input_files([config]))
    assert [name for name in recorded_files(tmp_path) if file.endswith(name)] == ["hashed_rules.py"]
    parameters = dotted_values(config.model_dump(mode="json"))
    assert parameters["algorithm.loss"] == "hashed_rules:Cautious"
    assert parameters["algorithm.loss.strength"] == 2


def test_gspo_from_its_paper_is_the_built_in_rule_bit_for_bit(written):
    written("gspo_rule", GSPO)
    torch.manual_seed(0)
    old = -3 * torch.rand(5, 9)
    advantages = torch.randn(5, 9)
    mask = (torch.rand(5, 9) < 0.8).float()
    results = []
    for name in ("gspo", "gspo_rule:Gspo"):
        logprobs = (old + 1e-3 * torch.linspace(-1, 1, 45).view(5, 9)).requires_grad_()
        result = LOSS.read(name)(
            loss_inputs(logprobs, old, advantages, UpdateTotals(1, 1), completion_mask=mask)
        )
        losses = getattr(result, "losses", result)
        (losses * mask).sum().backward()
        results.append((losses.detach(), logprobs.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_refused_with_its_file_and_line(written, name):
    broken = BROKEN[name]
    text = broken.get("module") or RULE + broken["call"]
    module = f"broken_{name.replace(' ', '_')}"
    file = written(module, f"CALLS = []\n\n{text}\n")
    ones = torch.ones(1, 2)
    with pytest.raises((ValueError, ConfigError)) as caught:
        config = AlgorithmConfig(loss=f"{module}:Rule", lopti_eta=0.5)
        check_rules(config)
        for _ in range(20):
            update_loss(
                loss_inputs(ones.clone().requires_grad_(), ones, ones, UpdateTotals(2, 1)), config
            )
    if "code" in broken:
        assert caught.value.code == broken["code"]
    else:
        assert broken["error"] in str(caught.value)
    if name != "another kind":
        assert file in str(caught.value)
    if name not in ("another kind", "absent"):
        assert re.search(rf"{module}.py:[78]|{module}.py:1\d", str(caught.value))


def test_a_rule_is_searched_in_the_runs_folder_and_the_error_names_it(
    written, tmp_path, monkeypatch
):
    written("moved_rules", RIGHT)
    saved = AlgorithmConfig(loss="moved_rules:Cautious").model_dump(mode="json")
    (tmp_path / "moved_rules.py").rename(tmp_path / "elsewhere_rules.py")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    sys.modules.pop("moved_rules")
    with pytest.raises(ValueError, match=r"moved_rules.*PYTHONPATH") as caught:
        AlgorithmConfig(**saved)
    assert str(tmp_path / "other") in str(caught.value)


def test_built_in_rules_need_no_torch_to_be_read(tmp_path):
    code = (
        "import sys; from trainer.config.schema import load_config; load_config('papers:sapo'); "
        "print(*sys.modules)"
    )

    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "trainer.rules.losses" in modules
    assert "torch" not in modules
