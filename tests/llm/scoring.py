"""Batches of real text, and what transformers alone says of it."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

TEMPERATURE = 0.7
TEXT = (
    "Knights always tell the truth, and knaves always lie. If Alice says that Bob is a knave, then "
    "exactly one of "
    "them is a knight: {} + {} = {}. So the sum of both numbers is written below.\n\n"
)


def chat(tokenizer: PreTrainedTokenizerBase, question: str) -> list[int]:
    """Token ids of a question in the model's chat template, up to where the answer begins."""
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def long_text(tokenizer: PreTrainedTokenizerBase, tokens: int) -> list[int]:
    """So many token ids of prose that never repeats itself exactly."""
    text = "".join(
        TEXT.format(7 * i % 101, 3 * i % 89, 7 * i % 101 + 3 * i % 89) for i in range(tokens // 40)
    )
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) >= tokens
    return ids[:tokens]


def as_batch(rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids [b, L], prompt lengths [b] and completion mask [b, T] of rows of prompt and
    completion.
    """
    length = max(len(p) + len(c) for p, c in rows)
    longest = max(len(c) for _, c in rows)
    ids = torch.full((len(rows), length), 2)
    mask = torch.zeros(len(rows), longest)
    for row, (prompt, completion) in enumerate(rows):
        ids[row, : len(prompt) + len(completion)] = torch.tensor([*prompt, *completion])
        mask[row, : len(completion)] = 1
    return ids, torch.tensor([len(prompt) for prompt, _ in rows]), mask


@torch.no_grad()
def plain_logprobs(
    model: PreTrainedModel, prompt: Sequence[int], completion: Sequence[int]
) -> Tensor:
    """Log-probabilities of the completion's tokens at `TEMPERATURE`, [T], of one row without
    padding.
    """
    ids = torch.tensor([[*prompt, *completion]])
    logits = model(input_ids=ids, logits_to_keep=len(completion) + 1, use_cache=False).logits[
        0, :-1
    ]
    table = (logits.double() / TEMPERATURE).log_softmax(-1)
    return table.gather(-1, torch.tensor(completion)[:, None])[:, 0]
