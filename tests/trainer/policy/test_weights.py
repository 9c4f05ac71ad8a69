import pytest
import torch

from tests.conftest import random_model
from trainer.errors import StorageError
from trainer.policy.weights import load_optimizer_tensors, load_weights, optimizer_tensors


@pytest.mark.parametrize("tied", [True, False])
def test_weights_round_trip_and_foreign_weights_are_refused(tmp_path, tied):
    saved, fresh = random_model(tied=tied, seed=1), random_model(tied=tied, seed=2)
    saved.save_pretrained(tmp_path)
    load_weights(tmp_path, fresh)
    for a, b in zip(saved.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(StorageError, match="does not fit"):
        load_weights(
            tmp_path, random_model(family="llama", tied=False) if tied else random_model("qwen2", True, 61).model
        )


def test_optimizer_state_round_trips_by_parameter_name():
    def trained():
        model = random_model(seed=3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        for _ in range(2):
            model(torch.tensor([[3, 4, 5]])).logits.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    model, optimizer = trained()
    tensors = {name: tensor.clone() for name, tensor in optimizer_tensors(model, optimizer).items()}
    assert len(tensors) == 3 * len(list(model.parameters()))  # step and two moments each
    fresh = random_model(seed=3)
    restored = torch.optim.AdamW(fresh.parameters(), lr=1e-2, fused=True)
    load_optimizer_tensors(fresh, restored, tensors)
    fresh.load_state_dict(model.state_dict())
    for m, o in ((model, optimizer), (fresh, restored)):
        m(torch.tensor([[3, 4, 5]])).logits.square().mean().backward()
        o.step()
    for a, b in zip(model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b)
