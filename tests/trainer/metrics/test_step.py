import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.trainer.algorithm.batches import make_batch
from trainer.config.algorithm import AlgorithmConfig
from trainer.metrics import step
from trainer.metrics.step import (
    Stopwatch,
    batch_metrics,
    memory_metrics,
    read_metrics,
    rollout_metrics,
)
from trainer.parallel.ranks import Parallel


def mismatched_metrics(**settings):
    """Metrics of a batch whose engine ratios are 1 except for 3 and 0.5 in the first completion (5
    tokens).
    """
    batch = make_batch()
    log_ratio = torch.zeros_like(batch.completion_mask)
    log_ratio[0, :2] = torch.tensor([3.0, 0.5]).log()
    old = -1.0 * batch.completion_mask
    batch = replace(batch, old_logprobs=old, rollout_logprobs=old - log_ratio, ref_logprobs=None)
    return read_metrics([batch_metrics(batch, AlgorithmConfig(**settings))], Parallel())


@pytest.mark.parametrize(
    ("rewards", "zero_variance"),
    [([1.0, 1.0], 1.0), ([1000.0, 1000.0001], 1.0), ([1.0, 0.0], 0.0), ([1.0], 0.0)],
)
def test_a_group_of_size_1_has_no_zero_variance(rewards, zero_variance):
    completion = SimpleNamespace(token_ids=[1], finish_reason="stop")
    parts = {"completion": completion, "correct": True, "scoring": "ok", "parsed": True}
    rollouts = [SimpleNamespace(reward=reward, reward_breakdown={}, **parts) for reward in rewards]
    sample = SimpleNamespace(sampled=[SimpleNamespace(rollouts=rollouts)], dropped=0)
    metrics = read_metrics([rollout_metrics(sample)], Parallel())
    assert metrics["rollout/zero_variance_groups"] == zero_variance


TOKENS = 5 + 9 + 3 + 12 + 7 + 1 + 4 + 8


def test_engine_mismatch_by_hand():
    metrics = mismatched_metrics()
    assert metrics["rollout/engine_logprob_diff"] == pytest.approx(
        (math.log(3) + math.log(2)) / TOKENS
    )
    assert metrics["rollout/engine_logprob_diff_max"] == pytest.approx(math.log(3))
    assert metrics["rollout/engine_ratio"] == pytest.approx((TOKENS - 2 + 3 + 0.5) / TOKENS)
    assert "rollout/importance_cut" not in metrics


def test_share_cut_by_the_rollout_correction():
    # 32 tokens at a ratio of 1 are at this cap, and it cuts only the ratio of 3
    at_cap = mismatched_metrics(rollout_correction={"cap": 1.0})
    assert at_cap["rollout/importance_cut"] == pytest.approx(1 / TOKENS)
    token = mismatched_metrics(rollout_correction={"cap": 2.0})
    assert token["rollout/importance_cut"] == pytest.approx(1 / TOKENS)
    # The first completion's ratio is 3 * 0.5 = 1.5: kept below a cap of 2, dropped whole above one
    # of 1.2.
    kept = mismatched_metrics(rollout_correction={"cap": 2.0, "level": "sequence", "rule": "mask"})
    assert kept["rollout/importance_cut"] == 0
    dropped = mismatched_metrics(
        rollout_correction={"cap": 1.2, "level": "sequence", "rule": "mask"}
    )
    assert dropped["rollout/importance_cut"] == pytest.approx(5 / TOKENS)


def test_a_gpu_tells_what_it_holds(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30_000_000_000, 80_000_000_000))
    assert read_metrics([memory_metrics(torch.device("cuda", 0))], Parallel()) == {
        "memory/peak": 50.0
    }


def test_phases_add_up_nest_and_count_when_they_fail(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 4.0, 10.0, 12.5, 20.0, 20.25])
    monkeypatch.setattr(step.time, "perf_counter", lambda: next(clock))
    watch = Stopwatch()
    with watch("step"), watch("rollout"):  # 0 to 4, 1 to 3
        pass
    with watch("rollout"):
        pass
    with pytest.raises(RuntimeError), watch("update"):
        raise RuntimeError
    assert watch.seconds == {"step": 4.0, "rollout": 2.0 + 2.5, "update": 0.25}


def test_both_ends_of_a_phase_wait_for_the_gpu(monkeypatch):
    events = []
    monkeypatch.setattr(step.torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(step.torch.cuda, "synchronize", lambda: events.append("wait"))
    with Stopwatch()("update"):
        events.append("work")
    assert events == ["wait", "work", "wait"]
