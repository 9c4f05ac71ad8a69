import pytest
import torch

from loptune.errors import StorageError
from tests.conftest import random_model
from tests.refusals import refused
from trainer.policy.weights import load_weights


@pytest.mark.parametrize("tied", [True, False])
def test_weights_round_trip_and_foreign_weights_are_refused(tmp_path, tied):
    saved = random_model(tied=tied, seed=1)
    fresh = random_model(tied=tied, seed=2)
    saved.save_pretrained(tmp_path)
    load_weights(tmp_path, fresh)
    for a, b in zip(saved.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b)
    with refused("checkpoint-does-not-fit", StorageError):
        load_weights(
            tmp_path,
            random_model(family="llama", tied=False)
            if tied
            else random_model("qwen2", True, 61).model,
        )
