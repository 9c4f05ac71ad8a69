"""Earlier campaigns of the same program, whose error budget a new campaign continues.

The bound on false keeps holds for one sequence of proposals. If each new campaign had its own
budget, many short campaigns would keep more false changes than a long one. So the proposals of a
new campaign are counted after the proposals of the earlier campaigns.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from loptune.files import Record


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """The part of an earlier campaign that a new one continues."""

    folder: str
    started: float  # start time [seconds since 1970]; also identifies the campaign
    proposals: int
    # for each kept proposal, how many proposals existed when it was kept; ascending
    kept: list[int]


def as_records(earlier: Sequence[Earlier]) -> list[Record]:
    """Return the fields that a campaign's first event records."""
    return [asdict(each) for each in earlier]


def positions(earlier: Sequence[Record]) -> tuple[int, list[int]]:
    """Return the number of proposals in all earlier campaigns and, for each kept proposal, how many
    proposals existed when it was kept. Proposals are counted across campaigns.
    """
    made = 0
    kept: list[int] = []
    for fields in earlier:
        kept += [made + place for place in fields["kept"]]
        made += fields["proposals"]
    return made, kept
