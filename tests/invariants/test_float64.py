"""What float32 changes: updates again in float64, and again there from weights that are rounded otherwise."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from tests.trainer.test_loop import build, small_config
from trainer.algorithm import scoring
from trainer.algorithm.batching import _map_tensors, build_batch
from trainer.parallel.models import WithoutAdapter
from trainer.policy.logprobs import TokenScores

UNIT = 2.0**-24  # of float32: half of the distance from 1 to the next number
LAG = {"rollout.lag": 1, "algorithm.importance_sampling_cap": 2.0}
CASES = {  # and by how much at least one rounding of the weights moves them in two steps
    "adapter": ({"model.lora.r": 4, "optim.eps": 1e-4, "optim.lr": 1e-3}, 1e-9),
    "collapsed adapter": ({"model.lora.r": 4, "optim.eps": 1e-4, "optim.lr": 3e-2}, 1e-4),
    "all weights, small eps": ({"optim.eps": 1e-8, "optim.lr": 1e-2}, 1e-5),
}


class Exact(nn.Module):
    """A `LogprobModel` by its definition, at temperature 1 and in the dtype of the model."""

    def __init__(self, causal_lm):
        super().__init__()
        self.causal_lm = causal_lm

    def forward(self, ids, prompt_lengths, mask, with_entropy=False):
        rows, columns = mask.nonzero(as_tuple=True)
        places = prompt_lengths[rows] + columns
        table = self.causal_lm(input_ids=ids, use_cache=False).logits.log_softmax(-1)[rows, places - 1]
        own, zeros = table.gather(-1, ids[rows, places][:, None])[:, 0], table.new_zeros(mask.shape)
        entropies = zeros.index_put((rows, columns), -(table.exp() * table).sum(-1))
        return TokenScores(zeros.index_put((rows, columns), own), entropies, zeros)


def double_batch(*given):
    return _map_tensors(build_batch(*given), lambda field: field.double() if field.is_floating_point() else field)


def norm(self, states):  # transformers' computes in float32
    return self.weight * states * (states.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()


def in_float64(trainer, rounding):
    """Have a trainer compute in float64, from weights that differ by up to ``rounding`` of their size."""
    model, generator = trainer.models.causal_lm.double(), torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data *= 1 + rounding * torch.empty_like(parameter).uniform_(-1, 1, generator=generator)
    policy = trainer.updater.policy = Exact(model)
    reference = WithoutAdapter(policy, model) if trainer.config.model.lora.r else Exact(copy.deepcopy(model))
    trainer.models = trainer.scorer._models = replace(trainer.models, policy=policy, reference=reference)


def trained(config, folder, monkeypatch, sampled, rounding=None):
    """The trained weights after two steps, on the completions in ``sampled``, which are put there if it is empty."""
    trainer = build(config, folder)
    sample, recorded = trainer.source.next_groups, iter([*sampled])
    with monkeypatch.context() as patch:
        if sampled:
            patch.setattr(trainer.source, "next_groups", lambda *asked: next(recorded))
        else:
            patch.setattr(trainer.source, "next_groups", lambda *asked: sampled.append(sample(*asked)) or sampled[-1])
        if rounding is not None:
            in_float64(trainer, rounding)
            patch.setattr(Qwen2RMSNorm, "forward", norm)
            patch.setattr(scoring, "build_batch", double_batch)
            patch.setattr(trainer.source, "sync_weights", lambda *asked: None)
        moved = [trainer.training_step()["rollout/engine_logprob_diff_max"] for _ in range(2)]
    weights = [p.detach().double().flatten() for p in trainer.models.causal_lm.parameters() if p.requires_grad]
    trainer.close("KILLED")
    return torch.cat(weights), moved[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_float32_differs_from_float64_by_what_one_rounding_of_the_weights_becomes(
    name, tiny_policy, tmp_path, monkeypatch
):
    settings, least = CASES[name]
    config, sampled = small_config(tiny_policy, **LAG, **settings), []
    single, log_ratio = trained(config, tmp_path / "32", monkeypatch, sampled)
    double, _ = trained(config, tmp_path / "64", monkeypatch, sampled, 0.0)
    rounded, _ = trained(config, tmp_path / "rounded", monkeypatch, sampled, UNIT)
    of_float32, of_rounding = (float((one - double).abs().max()) for one in (single, rounded))
    print(f"{name}: float32 {of_float32:.1e}, one rounding {of_rounding:.1e}, log-ratios up to {log_ratio:.1f}")
    assert least < of_rounding and of_float32 < 200 * of_rounding  # float32 rounds every number, not once
