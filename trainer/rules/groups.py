"""Group and batch statistics for advantages."""

from trainer.rules.inputs import SumOverRanks
from trainer.types import Tensor


def group_means(values: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and size of each completion's group, [B] float64 each."""
    values = values.double()
    _, group = group_ids.unique(return_inverse=True)
    zeros = values.new_zeros(int(group.max()) + 1)
    sizes = zeros.index_add(0, group, values.new_ones(values.shape))
    return (zeros.index_add(0, group, values) / sizes)[group], sizes[group]


def centered(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Return ``r - mean of group``, [B] float64: exactly 0 in zero-variance groups, and r in groups
    of size 1.
    """
    means, sizes = group_means(rewards, group_ids)
    return (rewards.double() - means).where(sizes > 1, rewards.double())


def group_std(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Return the unbiased standard deviation of each completion's group, [B] float64; 1 in groups
    of size 1.
    """
    means, sizes = group_means(rewards, group_ids)
    squares, _ = group_means((rewards.double() - means).square(), group_ids)
    return (squares * sizes / (sizes - 1).clamp(min=1)).sqrt().where(sizes > 1, 1.0)


def mean_and_variance(
    values: Tensor, mask: Tensor, sum_over_ranks: SumOverRanks
) -> tuple[Tensor, Tensor]:
    """Return mean and unbiased variance of the masked values of all ranks, [] float64 each."""
    count = sum_over_ranks(mask.sum().double())
    mean = sum_over_ranks((values * mask).sum().double()) / count
    squares = sum_over_ranks(((values.double() - mean).square() * mask).sum())
    return mean, squares / (count - 1).clamp(min=1)


def whiten(values: Tensor, mask: Tensor, sum_over_ranks: SumOverRanks) -> Tensor:
    """Return ``(x - mean) / sqrt(var + 1e-8)`` with mean and unbiased variance over the masked
    values of all ranks.
    """
    mean, variance = mean_and_variance(values, mask, sum_over_ranks)
    return ((values - mean) * (variance + 1e-8).rsqrt()).to(values.dtype) * mask
