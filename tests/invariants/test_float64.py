"""What float32 changes: updates again in float64, and again there from weights that are rounded otherwise."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from tests.rounding import UNIT
from tests.trainer.test_loop import build, small_config
from trainer.algorithm import scoring
from trainer.algorithm.batching import build_batch, map_tensors
from trainer.metrics.stopwatch import Stopwatch
from trainer.policy.logprobs import TokenScores

CAPPED = {"algorithm.engine_correction.cap": 2.0, "algorithm.kl_coef": 0.0}
CASES = {  # and by how much at least one rounding of the weights moves them in two steps
    "adapter": ({"model.lora.r": 4, "optim.eps": 1e-4, "optim.lr": 1e-3}, 1e-9),
    "collapsed adapter": ({"model.lora.r": 4, "optim.eps": 1e-4, "optim.lr": 3e-2}, 1e-4),
    "all weights, small eps": ({"optim.eps": 1e-8, "optim.lr": 1e-2}, 1e-5),
}


class Exact(nn.Module):
    """A `LogprobModel` by its definition, at temperature 1 and in the dtype of the model; without entropies."""

    def __init__(self, causal_lm):
        super().__init__()
        self.causal_lm = causal_lm

    def forward(self, ids, prompt_lengths, mask, with_entropy):
        rows, columns = mask.nonzero(as_tuple=True)
        places = prompt_lengths[rows] + columns
        table = self.causal_lm(input_ids=ids, use_cache=False).logits.log_softmax(-1)[rows, places - 1]
        zeros = table.new_zeros(mask.shape)
        own = zeros.index_put((rows, columns), table.gather(-1, ids[rows, places][:, None])[:, 0])
        return TokenScores(own, zeros, zeros)


def double_batch(*given):
    return map_tensors(build_batch(*given), lambda field: field.double() if field.is_floating_point() else field)


def norm(self, states):  # transformers' computes in float32
    return self.weight * states * (states.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()


def trained(config, folder, monkeypatch, sampled, rounding=None):
    """The trained weights after two steps, on the completions of the start policy in ``sampled``, put there first.

    With ``rounding`` in float64, from weights that differ by up to so much of their size.
    """
    trainer, generator = build(config, folder), torch.Generator().manual_seed(0)
    if rounding is None:
        sampled += [trainer.source.next_groups(step, Stopwatch()) for step in range(2)]
    recorded = iter(sampled)
    with monkeypatch.context() as patch:
        patch.setattr(trainer.source, "next_groups", lambda *asked: next(recorded))
        patch.setattr(trainer.source, "sync_weights", lambda *asked: None)
        if rounding is not None:
            patch.setattr(Qwen2RMSNorm, "forward", norm)
            patch.setattr(scoring, "build_batch", double_batch)
            for parameter in trainer.models.causal_lm.double().parameters():
                parameter.data *= 1 + rounding * torch.empty_like(parameter).uniform_(-1, 1, generator=generator)
            trainer.updater.policy = Exact(trainer.models.causal_lm)
            trainer.models = trainer.scorer.models = replace(trainer.models, policy=trainer.updater.policy)
        moved = [trainer.training_step()["rollout/engine_logprob_diff_max"] for _ in range(2)]
    weights = [p.detach().double().flatten() for p in trainer.models.causal_lm.parameters() if p.requires_grad]
    trainer.close("KILLED")
    return torch.cat(weights), moved[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_float32_is_as_far_from_float64_as_roundings_of_the_weights_take_it(name, tiny_policy, tmp_path, monkeypatch):
    settings, least = CASES[name]
    config, sampled = small_config(tiny_policy, **CAPPED, **settings), []
    single, log_ratio = trained(config, tmp_path / "32", monkeypatch, sampled)
    double, rounded = (trained(config, tmp_path / f"{r}", monkeypatch, sampled, r)[0] for r in (0.0, UNIT))
    of_float32, of_rounding = (float((one - double).abs().max()) for one in (single, rounded))
    print(f"{name}: float32 {of_float32:.1e}, one rounding {of_rounding:.1e}, log-ratios up to {log_ratio:.1f}")
    assert least < of_rounding and of_float32 < 200 * of_rounding  # float32 rounds every number, not once
