"""Small hand-made rollout batches for tests."""

import torch

from trainer.algorithm.batching import build_batch
from trainer.types import Completion, Problem, Rollout, RolloutGroup, TrainBatch


def make_groups(
    sizes: list[list[int]],
    prompt_lengths: list[int],
    seed: int = 0,
    rewards: tuple[float, float] = (3.0, -1.0),
) -> list[RolloutGroup]:
    """One group per prompt; ``sizes[p]`` are the completion lengths of prompt p. The two rewards alternate."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(3, 60, (count,), generator=generator).tolist())

    groups = []
    for group_id, (lengths, prompt_length) in enumerate(zip(sizes, prompt_lengths, strict=True)):
        prompt = tokens(prompt_length)
        problem = Problem(str(group_id), "", "", "", "test")
        rollouts = []
        for k, length in enumerate(lengths):
            completion = Completion(tokens(length), (-1.0,) * length, "", "stop")
            reward = rewards[k % 2]
            rollouts.append(Rollout(group_id, problem, prompt, completion, reward, {}, reward > 0))
        groups.append(RolloutGroup(group_id, rollouts))
    return groups


def make_batch(seed: int = 0) -> TrainBatch:
    groups = make_groups([[5, 9, 3, 12], [7, 1, 4, 8]], [6, 11], seed)
    return build_batch(groups, pad_token_id=0, device=torch.device("cpu"))
