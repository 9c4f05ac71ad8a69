"""Rows of random tokens in groups with a common prompt, as a policy takes them."""

import torch

Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def rows_of(*groups: tuple[int, list[int]], vocabulary: int = 61) -> Rows:
    """Tokens, prompt lengths and completion mask of groups, each a prompt's length and those of
    completions.
    """
    generator = torch.Generator().manual_seed(1)
    prompts, lengths = zip(
        *((prompt, length) for prompt, group in groups for length in group), strict=True
    )
    longest = max(map(sum, zip(prompts, lengths, strict=True)))
    ids = torch.randint(3, vocabulary, (len(lengths), longest), generator=generator)
    first = 0
    for prompt, group in groups:
        ids[first : first + len(group), :prompt] = ids[first, :prompt].clone()
        first += len(group)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).float()
    return ids, torch.tensor(prompts), mask
