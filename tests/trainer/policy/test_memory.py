import pytest

from trainer.config.schema import ParallelConfig
from trainer.policy.memory import checkpoint_bytes, held_bytes

B = 10**9  # parameters


@pytest.mark.parametrize(
    ("settings", "ranks", "reference", "gigabytes"),
    [
        # 4 weights + 4 gradients + 8 moments, + 2 the reference
        ({}, 1, False, 16),
        ({"strategy": "ddp"}, 4, True, 18),
        # 2 weights + 2 reference + (12 optimizer + 4 gradients) / 4
        ({"strategy": "deepspeed", "zero_stage": 2}, 4, True, 8),
        ({"strategy": "deepspeed", "zero_stage": 1}, 4, True, 11),
        ({"strategy": "deepspeed", "zero_stage": 0}, 4, False, 18),
        ({"strategy": "deepspeed", "zero_stage": 3}, 4, True, 5),
        ({"strategy": "deepspeed", "zero_stage": 2, "offload": "optimizer"}, 4, True, 5),
        ({"strategy": "deepspeed", "zero_stage": 3, "offload": "parameters"}, 4, True, 1),
    ],
)
def test_what_a_rank_holds(settings, ranks, reference, gigabytes):
    assert held_bytes(B, 2, reference, ParallelConfig(**settings), ranks) == gigabytes * B


def test_what_a_checkpoint_takes():
    assert checkpoint_bytes(B, 2, ParallelConfig()) == 12 * B  # float32 weights and moments
    # bfloat16 weights, float32 master weights and moments
    assert checkpoint_bytes(B, 2, ParallelConfig(strategy="deepspeed")) == 14 * B
