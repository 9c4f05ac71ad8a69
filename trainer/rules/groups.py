"""Group and batch statistics for advantages."""

from collections.abc import Sequence

from trainer.rules.interface import SumOverRanks
from trainer.types import Tensor

# relative spacing of float32 numbers: a standard deviation below this fraction of the mean is due
# to rounding
FLOAT32_RESOLUTION = 2.0**-23


def is_rounding(mean: Tensor, variance: Tensor) -> Tensor:
    """Return whether values with this mean and variance differ only by float32 rounding."""
    return variance.sqrt() <= FLOAT32_RESOLUTION * mean.abs()


def is_varied(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Return for each completion whether the rewards of its group differ by more than float32's
    rounding, so that `centered` is not 0 for the whole group: [B] bool. True in groups of size 1,
    whose advantages are not relative to the group.
    """
    means, sizes = group_means(rewards, group_ids)
    variances, _ = group_means((rewards.double() - means).square(), group_ids)
    return ~is_rounding(means, variances) | (sizes == 1)


def has_varied_rewards(group: Sequence[float]) -> bool:
    """Return whether the rewards of one group are `is_varied`."""
    import torch  # a configuration is read without torch

    rewards = torch.tensor(group, dtype=torch.float64)
    return bool(is_varied(rewards, torch.zeros(len(rewards), dtype=torch.int64)).all())


def group_means(values: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and size of each completion's group, [B] float64 each."""
    values = values.double()
    _, group = group_ids.unique(return_inverse=True)
    zeros = values.new_zeros(int(group.max()) + 1)
    sizes = zeros.index_add(0, group, values.new_ones(values.shape))
    return (zeros.index_add(0, group, values) / sizes)[group], sizes[group]


def centered(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Return ``r - group mean``, [B] float64: exactly 0 in groups without spread, and r in
    groups of size 1.

    A group has no spread if its rewards differ by less than float32 precision. Such differences are
    rounding errors, because rewards are sums of float32 parts, and GRPO would divide by their size.
    """
    means, sizes = group_means(rewards, group_ids)
    deviations = (rewards.double() - means) * is_varied(rewards, group_ids)
    return deviations.where(sizes > 1, rewards.double())


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
    """Return mean and unbiased variance of the values of all ranks where ``mask`` is 1, [] float64
    each. ``mask`` is 0 elsewhere and has the shape of ``values``.
    """
    values = values.double() * mask
    count = sum_over_ranks(mask.sum().double())
    mean = sum_over_ranks(values.sum()) / count
    squares = sum_over_ranks(((values - mean).square() * mask).sum())
    return mean, squares / (count - 1).clamp(min=1)


def whiten(values: Tensor, mask: Tensor, sum_over_ranks: SumOverRanks) -> Tensor:
    """Return ``(x - mean) / sqrt(var + 1e-8)`` with mean and unbiased variance over the masked
    values of all ranks; 0 outside the mask, and everywhere if the values are equal up to float32's
    rounding. Computed in float64, and returned in the dtype of ``values`` or of ``mask``, whichever
    is wider.

    Adam takes a full step for a gradient of any size, so rounding errors must not become a
    gradient.
    """
    mean, variance = mean_and_variance(values, mask, sum_over_ranks)
    whitened = (values.double() - mean) * (variance + 1e-8).rsqrt()
    return whitened.masked_fill(is_rounding(mean, variance), 0.0).to(values.dtype) * mask
