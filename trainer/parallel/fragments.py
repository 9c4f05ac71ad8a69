"""The training state of one parameter as it is stored in the flat tensors of ZeRO's ranks."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

# AdamW's keys whose values do not have the parameter's shape
COUNTERS = ("step",)


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """The elements of a parameter that lie in one flat tensor of one rank."""

    parameter: str  # name in the policy
    start: int  # first element, in the flattened parameter
    count: int  # number of elements
    flat: int  # index of the rank's flat tensor
    offset: int  # first element, in the flat tensor


class SavedTensors(Protocol):
    """The training state in a checkpoint, in any layout."""

    def keys(self, parameter: str) -> list[str]:
        """Return the optimizer's keys of a parameter; empty before its first update."""

    def scalar(self, parameter: str, key: str) -> Tensor:
        """Return a scalar of the optimizer state, such as the update count."""

    def elements(self, parameter: str, key: str, start: int, count: int) -> Tensor:
        """Return ``count`` elements of a flattened tensor of the parameter, from ``start``. ``key``
        is ``weights``, in the dtype of the master weights, or a key of the optimizer.
        """
