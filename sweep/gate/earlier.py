"""Earlier campaigns of the same program, whose error budget a new campaign carries on.

The bound on false keeps holds for one sequence of proposals. Each new campaign with a budget of its
own would spend it again, and many short campaigns would keep more false changes than a long one. So
the proposals of a new campaign are counted after those of the earlier ones.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loptune.errors import ConfigError, UserError
from loptune.files import Record
from loptune.yaml_document import read_yaml, validate
from sweep.gate.spec import CampaignSpec

if TYPE_CHECKING:
    from sweep.gate.campaign import Campaign


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """What a new campaign needs to know of an earlier one."""

    folder: str
    started: float  # seconds since 1970, which also identifies the campaign
    proposals: int
    kept: list[int]  # numbers of proposals at the decisions to keep, ascending

    @classmethod
    def of(cls, campaign: "Campaign") -> "Earlier":
        """Return the numbers of a campaign so far."""
        kept = sorted(proposal.decided_at for proposal in campaign.proposals if proposal.kept)
        return cls(
            folder=str(campaign.folder.resolve()),
            started=campaign.started["time"],
            proposals=len(campaign.proposals),
            kept=kept,
        )


def earlier_campaigns(
    folder: Path, space: str | None, metric: str, named: Sequence[Path]
) -> list[Earlier]:
    """Return the earlier campaigns of a new one in the order of their starts, with those that they
    carry on.

    Args:
        folder: folder of the new campaign. The folders beside it are searched.
        space: search space of the new campaign; campaigns beside it with the same one are found.
        metric: metric of the new campaign.
        named: folders of further campaigns.

    Raises:
        ConfigError: an earlier campaign is damaged.
        MissingError: a named folder contains no campaign.
    """
    from sweep.gate.campaign import Campaign

    beside = [] if space is None else _beside(folder, space, metric)
    found: dict[float, Earlier] = {}
    for path in [*beside, *named]:
        try:
            campaign = Campaign(path)
        except UserError as error:
            if path in named:
                raise
            raise ConfigError(
                f"an earlier campaign of this program is damaged: {error.what}",
                str(path),
                "restore or delete it. With --new-budget, the campaign starts without it",
                code="earlier-damaged",
            ) from error
        known = [Earlier(**fields) for fields in campaign.started.get("earlier", [])]
        for each in [*known, Earlier.of(campaign)]:
            before = found.get(each.started)
            if before is None or before.proposals < each.proposals:
                found[each.started] = each
    return [found[started] for started in sorted(found)]


def _beside(folder: Path, space: str, metric: str) -> list[Path]:
    """Return the folders of campaigns beside a folder that run a space for a metric."""
    place = folder.resolve().parent
    if not place.is_dir():
        return []
    found = []
    for path in sorted(place.glob("*/campaign.yaml")):
        spec = validate(CampaignSpec, read_yaml(path))
        if path.parent != folder.resolve() and (spec.space, spec.metric) == (space, metric):
            found.append(path.parent)
    return found


def as_records(earlier: Sequence[Earlier]) -> list[Record]:
    """Return the fields that a campaign's first event records."""
    return [asdict(each) for each in earlier]


def positions(earlier: Sequence[Record]) -> tuple[int, list[int]]:
    """Return how many proposals were made in earlier campaigns, and at which of them one was kept,
    counted from 1 through all of them.
    """
    made = 0
    kept: list[int] = []
    for fields in earlier:
        kept += [made + place for place in fields["kept"]]
        made += fields["proposals"]
    return made, kept
