"""AR as a policy loss of verl: in its own registry where verl is installed, else in a stand-in."""

import importlib
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import pytest
import torch


@dataclass
class PolicyLossConfig:
    loss_mode: str = "vanilla"


@pytest.fixture
def registry(monkeypatch):
    """verl's, or its two functions as of 0.9.1; with a loss that returns the advantages it was
    given.
    """
    if find_spec("verl") is None:
        losses = {}
        module = ModuleType("verl.trainer.ppo.core_algos")
        module.register_policy_loss = lambda name: lambda loss: losses.setdefault(name, loss)
        module.get_policy_loss_fn = losses.__getitem__
        config = ModuleType("verl.workers.config")
        config.PolicyLossConfig = PolicyLossConfig
        for dummy_row in (module, config):
            monkeypatch.setitem(sys.modules, dummy_row.__name__, dummy_row)
    registry = importlib.import_module("verl.trainer.ppo.core_algos")
    registry.register_policy_loss("given")(lambda advantages, **rest: (advantages, rest))
    monkeypatch.delitem(sys.modules, "trainer.integrations.verl", raising=False)
    return registry


def test_the_wrapped_loss_gets_reweighted_advantages_only(registry):
    settings = importlib.import_module("trainer.integrations.verl").ARPolicyLossConfig(
        ar_alpha=0.3, ar_loss="given"
    )
    old = torch.tensor([[0.5, 0.1, 0.9]]).log()
    advantages = torch.tensor([[2.0, -1.0, 3.0]])
    mask = torch.ones(1, 3)
    mask[0, 2] = 0
    given = {
        "old_log_prob": old,
        "log_prob": old + 0.1,
        "response_mask": mask,
        "loss_agg_mode": "token-mean",
    }
    given |= {"config": SimpleNamespace(policy_loss=settings), "rollout_is_weights": None}
    result, rest = registry.get_policy_loss_fn(settings.loss_mode)(advantages=advantages, **given)
    torch.testing.assert_close(result, torch.tensor([[2 * 0.85, -0.73, 0.0]]))
    assert rest == given


@pytest.mark.parametrize("wrong", [{"ar_alpha": 1.5}, {"ar_loss": "ar"}])
def test_settings_that_cannot_work_are_refused(registry, wrong):
    with pytest.raises(ValueError, match=r"policy_loss\.ar_"):
        importlib.import_module("trainer.integrations.verl").ARPolicyLossConfig(**wrong)
