import math
from dataclasses import replace

import pytest
import torch

from loptune.declared_metrics import declaration
from tests.rounding import forward_terms, sum_tolerance
from tests.trainer.algorithm.batches import make_batch
from tests.trainer.test_loop import build, small_config
from trainer.algorithm.update import UpdateStatistics
from trainer.config.algorithm import AlgorithmConfig
from trainer.metrics.bands import BANDS, band_metrics, band_of
from trainer.metrics.step import read_metrics
from trainer.parallel.ranks import Parallel
from trainer.policy.logprobs import LogprobModel

# One row of eight tokens, two in each of the bands but the third, which has none, and one outside
# the mask.
PROBABILITIES = [0.1, 0.2, 0.25, 0.4, 0.8, 0.9, 0.99, 1.0]
ADVANTAGES = [2.0, -2.0, 1.0, 1.0, -1.0, 1.0, 0.5, -0.5]
NORMS = [1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.0, 0.0]


def hand_batch():
    batch = make_batch()
    row = torch.tensor([[*PROBABILITIES, 0.3]])
    mask = torch.ones(1, 9)
    mask[0, 8] = 0
    pad = torch.tensor([[100.0]])
    return replace(
        batch,
        completion_mask=mask,
        completion_lengths=torch.tensor([8]),
        old_logprobs=row.log(),
        ref_logprobs=None,
        advantages=torch.cat([torch.tensor([ADVANTAGES]), pad], dim=1),
    )


def padded(values):
    return torch.tensor([[*values, 77.0]])


def metrics_of(batch, entropies=NORMS, updated=(0,) * 8, clipped=(0,) * 8, parallel=None):
    batch = replace(batch, entropies=padded(entropies), gradient_norms=padded(NORMS))
    counts = {"times_updated": padded(updated), "times_clipped": padded(clipped)}
    statistics = replace(UpdateStatistics.of(batch), **counts)
    return read_metrics(
        [band_metrics(batch, statistics, AlgorithmConfig(kl_estimator="k1"))],
        parallel or Parallel(),
    )


class TwoEqualRanks(Parallel):
    world_size = 2

    def gather(self, items):
        return items * 2


def test_a_band_holds_its_lower_edge():
    assert band_of(
        torch.tensor([0.0, 0.2499, 0.25, 0.5, 0.75, 0.9899, 0.99, 1.0]).log()
    ).tolist() == [*(0, 0, 1, 2, 3, 3, 4, 4)]


def test_fractions_by_hand():
    metrics = metrics_of(hand_batch())
    tokens = [metrics[f"tokens/token_fraction/{band}"] for band in BANDS]
    assert tokens == [0.25, 0.25, 0, 0.25, 0.25]
    assert [metrics[f"tokens/advantage_fraction/{band}"] for band in BANDS] == pytest.approx(
        [4 / 9, 2 / 9, 0, 2 / 9, 1 / 9]
    )
    # |A| * norm: 2, 1 | .5, .5 | | .25, .25 | 0, 0; they sum to 4.5.
    assert [metrics[f"tokens/gradient_fraction/{band}"] for band in BANDS] == pytest.approx(
        [3 / 4.5, 1 / 4.5, 0, 0.5 / 4.5, 0]
    )


def test_means_are_of_the_bands_own_tokens_and_absent_without_any():
    batch = hand_batch()
    batch = replace(batch, ref_logprobs=batch.old_logprobs - torch.arange(9.0))
    metrics = metrics_of(batch, entropies=[1, 3, 0, 0, 2, 2, 0, 1])
    assert metrics["tokens/entropy/0.00-0.25"] == 2
    assert metrics["tokens/entropy/0.99-1.00"] == 0.5
    assert metrics["tokens/kl/0.25-0.50"] == pytest.approx((2 + 3) / 2)
    assert "tokens/entropy/0.50-0.75" not in metrics and "tokens/kl/0.50-0.75" not in metrics


def test_no_advantage_leaves_out_the_shares_of_it():
    metrics = metrics_of(replace(hand_batch(), advantages=torch.zeros(1, 9)))
    assert metrics["tokens/token_fraction/0.00-0.25"] == 0.25
    assert not [
        name for name in metrics if "advantage_fraction" in name or "gradient_fraction" in name
    ]


def test_two_equal_ranks_give_the_same_metrics_and_all_names_are_declared():
    counts = {"updated": [1] * 8, "clipped": [0, 1, 0, 0, 0, 0, 1, 1]}
    alone = metrics_of(hand_batch(), **counts)
    assert metrics_of(hand_batch(), **counts, parallel=TwoEqualRanks()) == pytest.approx(alone)
    assert alone["tokens/clip_fraction/0.00-0.25"] == 0.5
    assert alone["tokens/clip_fraction/0.25-0.50"] == 0
    assert alone["tokens/clip_fraction/0.99-1.00"] == 1
    for name in alone:
        assert declaration(name).formula


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_closed_form_of_the_gradient_norm_is_that_of_autograd(causal_lm, temperature):
    """The norm at each token of d logprob / d (logits / temperature), taken one token at a time in
    float64.
    """
    batch = make_batch()
    with torch.no_grad():
        scores = LogprobModel(causal_lm, temperature, 7)(
            batch.input_ids, batch.prompt_lengths, batch.completion_mask, with_entropy=True
        )
        logits = causal_lm.double()(batch.input_ids).logits / temperature
    rounding = sum_tolerance(forward_terms(causal_lm.config, 23), float(logits.abs().max()))
    assert rounding < 1e-3
    compared = 0
    for row, column in batch.completion_mask.nonzero().tolist():
        position = int(batch.prompt_lengths[row]) + column
        leaf = logits[row, position - 1].clone().requires_grad_()
        logprob = leaf.log_softmax(dim=-1)[batch.input_ids[row, position]]
        (gradient,) = torch.autograd.grad(logprob, leaf)
        norm = float(gradient.norm())
        assert float(scores.gradient_norms[row, column]) == pytest.approx(norm, abs=rounding)
        # Between sqrt(V / (V - 1)) and sqrt(2) times 1 - pi.
        rest = 1 - math.exp(float(logprob.detach()))
        vocabulary = logits.shape[-1]
        assert math.sqrt(vocabulary / (vocabulary - 1)) * rest <= norm * (1 + 1e-9)
        assert norm <= math.sqrt(2) * rest * (1 + 1e-9)
        compared += 1
    assert compared == int(batch.completion_mask.sum())
    assert scores.gradient_norms[batch.completion_mask == 0].abs().max() == 0


def test_closed_form_keeps_its_digits_near_certainty():
    """1 - 2p + sum of squares would cancel here; the difference from the one-hot does not."""
    from trainer.policy.scoring_head import ScoringHead

    head = ScoringHead(torch.nn.Linear(3, 3, bias=False), 1.0, 8)
    head.output_embeddings.weight.data = torch.eye(3)
    with torch.no_grad():
        logprobs, _, norms, _ = head(torch.tensor([[14.0, 0.0, 0.0]]), torch.tensor([0]), True)
    rest = 2 / (math.exp(14) + 2)
    assert float(norms) == pytest.approx(math.sqrt(1.5) * rest, abs=5e-7)
    assert float(logprobs) == pytest.approx(-rest, abs=1e-6)


def test_training_measures_bands_every_step(tiny_policy, tmp_path):
    trainer = build(small_config(tiny_policy), tmp_path / "run")
    try:
        trainer.train_until_evaluation()
        trainer.train_until_evaluation()
        steps = trainer.tracker.steps
        for step in (1, 2):
            fractions = [steps[step][f"tokens/token_fraction/{band}"] for band in BANDS]
            assert sum(fractions) == pytest.approx(1)
            assert any(name.startswith("tokens/clip_fraction/") for name in steps[step])
            assert steps[step]["time/diagnostics"] < steps[step]["time/step"]
        for name in steps[2]:
            assert declaration(name).formula
    finally:
        trainer.close()
