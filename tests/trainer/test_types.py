from dataclasses import FrozenInstanceError, fields

import pytest
import torch

from tests.trainer.algorithm.batches import make_batch
from trainer.types import Completion, LossOutput, Problem, Rollout, RolloutGroup, RunContext, TrainBatch


def test_the_length_of_a_completion_is_the_number_of_its_tokens():
    lengths = make_batch().completion_lengths
    assert lengths.tolist() == [5, 9, 3, 12, 7, 1, 4, 8]
    assert lengths.dtype == torch.int64


@pytest.mark.parametrize(
    "kind",
    [Completion, LossOutput, Problem, Rollout, RolloutGroup, RunContext, TrainBatch],
    ids=lambda k: k.__name__,
)
def test_no_stage_can_change_what_it_was_given(kind):
    value = object.__new__(kind)
    for field in fields(kind):
        with pytest.raises(FrozenInstanceError):
            setattr(value, field.name, None)
