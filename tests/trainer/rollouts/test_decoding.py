import torch

from tests.conftest import random_model
from trainer.rollouts.decoding import next_logits, read_prompts

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10]]


@torch.no_grad()
def test_a_family_that_returns_all_logits_is_cut_to_the_last(monkeypatch):
    model = random_model()
    forward = type(model).forward

    def of_all_positions(self, input_ids, attention_mask, position_ids, past_key_values, use_cache):
        return forward(
            self,
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
        )

    ids = torch.tensor([PROMPTS[0]])
    positions = torch.arange(3)[None]
    arguments = (ids, torch.ones(1, 3, dtype=torch.int64), positions)
    kept = next_logits(
        model, *arguments, read_prompts(model, [[1]], 0).cache.__class__(config=model.config)
    )
    monkeypatch.setattr(type(model), "forward", of_all_positions)
    cut = next_logits(
        model, *arguments, read_prompts(model, [[1]], 0).cache.__class__(config=model.config)
    )
    assert cut.shape == (1, model.config.vocab_size)
    torch.testing.assert_close(cut, kept)
