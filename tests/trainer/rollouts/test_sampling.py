import math

import pytest
import torch

from tests.rounding import sum_tolerance
from tests.tables import table
from trainer.rollouts.engine import SamplingParams
from trainer.rollouts.sampling import row_uniforms, sample_tokens, truncations

PROBABILITIES = [0.4, 0.1, 0.3, 0.2]
LOGITS = torch.log(torch.tensor([PROBABILITIES]))
# of the largest logarithm, and of exp, log, / and -
ROUNDING = sum_tolerance(len(PROBABILITIES) + 4, scale=4.6)


def draw(uniform, **options):
    params = SamplingParams(**{"temperature": 1.0, **options})
    tokens, logprobs = sample_tokens(LOGITS, torch.tensor([uniform], dtype=torch.float64), params)
    return int(tokens), math.exp(float(logprobs))


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.39, 0), (0.41, 1), (0.51, 2), (0.79, 2), (0.81, 3)]
)
def test_uniforms_are_mapped_through_the_cumulative_distribution(uniform, token):
    assert draw(uniform) == (token, pytest.approx(PROBABILITIES[token], rel=ROUNDING))


def test_temperature_sharpens_the_distribution():
    # squares .16 .01 .09 .04 of sum .30: cumulative .5333 .5667 .8667 1
    assert draw(0.53, temperature=0.5) == (0, pytest.approx(0.16 / 0.30, rel=ROUNDING))
    assert draw(0.55, temperature=0.5) == (1, pytest.approx(0.01 / 0.30, rel=ROUNDING))


@pytest.mark.parametrize(("options", "kept"), table("kept_tokens"))
def test_kept_tokens(options, kept):
    left = truncations(SamplingParams(1.0, **options))(None, LOGITS)
    assert left.isfinite().tolist() == [kept]
    assert torch.equal(left[left.isfinite()], LOGITS[left.isfinite()])


def test_probabilities_are_renormalized_over_the_kept_tokens():
    assert draw(0.56, top_k=2) == (0, pytest.approx(0.4 / 0.7, rel=ROUNDING))
    assert draw(0.58, top_k=2) == (2, pytest.approx(0.3 / 0.7, rel=ROUNDING))


def test_impossible_tokens_are_never_drawn():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf]])
    for uniform in (0.0, 1 - 2**-53):
        tokens, logprobs = sample_tokens(
            logits, torch.tensor([uniform], dtype=torch.float64), SamplingParams(temperature=1.0)
        )
        assert (int(tokens), float(logprobs)) == (1, 0.0)


def test_broken_logits_show_in_the_logprob():
    logits = torch.full((1, 4), math.nan)
    _, logprobs = sample_tokens(
        logits, torch.tensor([0.5], dtype=torch.float64), SamplingParams(1.0)
    )
    assert math.isnan(float(logprobs))


def test_half_precision_logits_are_normalized_in_single():
    logits = torch.zeros(1, 1000, dtype=torch.bfloat16)
    _, logprobs = sample_tokens(
        logits, torch.tensor([0.5], dtype=torch.float64), SamplingParams(1.0)
    )
    assert logprobs.dtype == torch.float32
    assert float(logprobs) == pytest.approx(-math.log(1000), rel=ROUNDING)


def test_uniforms_depend_on_seed_and_position_alone():
    both = row_uniforms([3, 4], 7)
    assert torch.equal(both[1], row_uniforms([4], 9)[0, :7])
    assert not torch.equal(both[0], both[1])
    assert not torch.equal(both[0], row_uniforms([3 + 2**32], 7)[0])
    assert row_uniforms([-1], 2).shape == (1, 2)
    assert float(both.min()) >= 0 and float(both.max()) < 1
