import torch

from trainer.cpu.packing import pack


def test_prompts_come_once_and_completions_without_their_last_token():
    packing = pack(
        torch.tensor(
            [[1, 2, 10, 11, 12, 0], [1, 2, 20, 0, 0, 0], [1, 2, 30, 31, 0, 0], [3, 4, 5, 40, 41, 0]]
        ),
        prompt_lengths=torch.tensor([2, 2, 2, 3]),
        completion_mask=torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 1, 0]]),
    )
    assert packing.input_ids.tolist() == [1, 2, 3, 4, 5, 10, 11, 30, 40]
    assert packing.position_ids.tolist() == [0, 1, 0, 1, 2, 2, 3, 2, 3]
    assert packing.predicting.tolist() == [1, 5, 6, 1, 1, 7, 4, 8]
    assert [(segment.tokens, segment.prefix) for segment in packing.segments] == [
        (slice(0, 5), slice(0, 0)),
        (slice(5, 8), slice(0, 2)),
        (slice(8, 9), slice(2, 5)),
    ]


def test_a_prompt_that_begins_like_the_one_before_is_another():
    packing = pack(
        torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 5]]),
        prompt_lengths=torch.tensor([2, 3, 3]),
        completion_mask=torch.tensor([[1, 1], [1, 0], [1, 0]]),
    )
    assert packing.input_ids.tolist() == [1, 2, 1, 2, 3, 3]
    assert packing.predicting.tolist() == [1, 5, 4, 4]


def test_rows_without_completion_and_with_one_token_need_their_prompt_only():
    packing = pack(
        torch.tensor([[7, 8, 1], [7, 8, 2]]),
        prompt_lengths=torch.tensor([2, 2]),
        completion_mask=torch.tensor([[1.0], [0.0]]),
    )
    assert packing.input_ids.tolist() == [7, 8]
    assert packing.predicting.tolist() == [1]
    assert len(packing.segments) == 1


def test_completions_are_seen_up_to_the_last_token_that_is_asked_for():
    packing = pack(
        torch.tensor([[7, 8, 1, 2, 3], [7, 8, 4, 5, 6]]),
        prompt_lengths=torch.tensor([2, 2]),
        completion_mask=torch.tensor([[0, 0, 1], [0, 1, 0]]),
    )
    assert packing.input_ids.tolist() == [7, 8, 1, 2, 4]
    assert packing.predicting.tolist() == [3, 4]
