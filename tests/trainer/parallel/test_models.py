import pytest
import torch

from tests.conftest import random_model
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.parallel.models import load_models, logprob_model, recorded_base
from trainer.parallel.ranks import Parallel
from trainer.policy.logprobs import LogprobModel


def config_of(random_policy, **changes):
    return apply_overrides(TrainConfig(), {"model.name_or_path": str(random_policy), **changes})


def test_policy_and_reference_begin_alike_and_the_policy_alone_is_trained(random_policy):
    config = config_of(
        random_policy, **{"optim.lr": 0.25, "optim.betas": [0.8, 0.9], "optim.weight_decay": 0.5}
    )
    models = load_models(config, Parallel())
    assert isinstance(models.policy, LogprobModel)
    assert models.policy.causal_lm is models.causal_lm
    policy, reference = (
        dict(module.named_parameters()) for module in (models.policy, models.reference)
    )
    assert policy.keys() == reference.keys()
    assert all(torch.equal(policy[name], reference[name]) for name in policy)
    assert all(parameter.requires_grad for parameter in policy.values())
    assert not any(parameter.requires_grad for parameter in reference.values())
    assert not models.reference.training
    (group,) = models.optimizer.param_groups
    assert (group["lr"], tuple(group["betas"]), group["weight_decay"]) == (0.25, (0.8, 0.9), 0.5)
    assert {id(parameter) for parameter in group["params"]} == {
        id(parameter) for parameter in policy.values()
    }

    next(iter(policy.values())).data.add_(1.0)  # the reference has weights of its own
    assert not torch.equal(next(iter(policy.values())), next(iter(reference.values())))


def test_scores_are_at_the_temperature_and_in_chunks_of_the_device(random_policy):
    config = config_of(random_policy, **{"rollout.temperature": 0.5})
    model = logprob_model(random_model(), config, torch.float32)
    assert (model.head.temperature, model.head.chunk_tokens) == (0.5, 128 * 2**20 // (4 * 61))


@pytest.mark.parametrize(
    ("stored", "wanted", "computed"),
    [
        (torch.float32, "bfloat16", torch.bfloat16),  # autocast over float32 weights
        (torch.float32, "float32", torch.float32),
        # the weights themselves are in bfloat16: no autocast
        (torch.bfloat16, "bfloat16", torch.float32),
    ],
)
def test_autocast_is_for_weights_kept_in_float32(random_policy, stored, wanted, computed):
    config = config_of(random_policy, **{"model.dtype": wanted})
    assert logprob_model(random_model(), config, stored).compute_dtype == computed


@pytest.mark.parametrize(
    "settings", [{"model.lora.r": 2, "model.lora.dropout": 0.1}, {"algorithm.lopti_eta": 0.5}]
)
def test_a_forward_is_kept_only_where_the_update_computes_the_same_again(random_policy, settings):
    assert load_models(config_of(random_policy), Parallel()).cached_forward is not None
    assert load_models(config_of(random_policy, **settings), Parallel()).cached_forward is None


def test_an_adapters_base_is_recorded_by_its_absolute_path(tmp_path, monkeypatch):
    (tmp_path / "base").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert recorded_base("../base") == str(tmp_path / "base")
    assert recorded_base("org/model") == "org/model"
    assert recorded_base("tiny") == "tiny"
