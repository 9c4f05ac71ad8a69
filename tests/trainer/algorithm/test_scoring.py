import math
from dataclasses import replace

import pytest
import torch

from loptune.errors import DivergedError
from tests.conftest import random_model
from tests.trainer.algorithm.batches import make_batch
from trainer.algorithm.batching import plan_update_batches
from trainer.algorithm.scoring import attach_logprobs, check_logprobs_finite, score_batch
from trainer.parallel.ranks import Parallel
from trainer.policy.logprobs import LogprobModel

TEMPERATURE = 0.9


@pytest.mark.parametrize("tokens_per_microbatch", [10_000, 20])
def test_scores_of_microbatches_are_those_of_the_whole_batch(tokens_per_microbatch):
    batch = make_batch()
    causal_lm = random_model()
    other = random_model(seed=1)
    plan = plan_update_batches(batch, 4, tokens_per_microbatch)
    policy, reference = (
        LogprobModel(lm, TEMPERATURE, chunk_tokens=16) for lm in (causal_lm, other)
    )
    scored = attach_logprobs(batch, policy, reference, plan)
    rows = (batch.input_ids, batch.prompt_lengths, batch.completion_mask)
    with torch.no_grad():
        whole = policy(*rows, with_entropy=True)
        of_reference = reference(*rows)
    assert torch.allclose(scored.old_logprobs, whole.logprobs, atol=1e-5)
    assert torch.allclose(scored.entropies, whole.entropies, atol=1e-5)
    assert torch.allclose(scored.ref_logprobs, of_reference.logprobs, atol=1e-5)
    assert torch.equal(scored.gradient_norms > 0, batch.completion_mask.bool())
    assert not scored.old_logprobs.requires_grad
    assert not scored.old_logprobs[batch.completion_mask == 0].any()
    bare = score_batch(policy, batch, plan, with_entropy=False)
    assert bare.entropies is None and bare.gradient_norms is None


@pytest.mark.parametrize("name", ["old_logprobs", "ref_logprobs", "entropies"])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_score_that_is_no_number_is_a_divergence(name, value):
    batch = make_batch()
    scores = torch.zeros_like(batch.completion_mask)
    check_logprobs_finite(
        replace(batch, ref_logprobs=None, entropies=None), 1, Parallel(torch.device("cpu"))
    )
    scores[0, 0] = value
    with pytest.raises(DivergedError) as caught:
        check_logprobs_finite(replace(batch, **{name: scores}), 3, Parallel(torch.device("cpu")))
    assert caught.value.step == 3
    assert caught.value.value == pytest.approx(value, nan_ok=True)
