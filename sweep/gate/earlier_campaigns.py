"""Find the earlier campaigns of a program."""

from collections.abc import Sequence
from pathlib import Path

from loptune.errors import ConfigError, UserError
from loptune.yaml_document import read_yaml, validate
from sweep.gate.campaign import Campaign
from sweep.gate.earlier import Earlier
from sweep.gate.spec import CampaignSpec


def earlier_campaigns(
    folder: Path, space: str | None, metric: str, named: Sequence[Path]
) -> list[Earlier]:
    """Return the earlier campaigns of a new one in the order of their starts, with those that they
    carry on.

    Args:
        folder: folder of the new campaign. The folders in its parent folder are searched.
        space: search space of the new campaign; other campaigns with the same one are found.
        metric: metric of the new campaign.
        named: folders of further campaigns.

    Raises:
        ConfigError: an earlier campaign is damaged.
        MissingError: a named folder contains no campaign.
    """
    found_here = [] if space is None else _same_parent(folder, space, metric)
    found: dict[float, Earlier] = {}
    for path in [*found_here, *named]:
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
        for each in [*known, _earlier(campaign)]:
            before = found.get(each.started)
            if before is None or before.proposals < each.proposals:
                found[each.started] = each
    return [found[started] for started in sorted(found)]


def _same_parent(folder: Path, space: str, metric: str) -> list[Path]:
    """Return the folders of campaigns in the same parent folder that run a space for a metric."""
    place = folder.resolve().parent
    if not place.is_dir():
        return []
    found = []
    for path in sorted(place.glob("*/campaign.yaml")):
        spec = validate(CampaignSpec, read_yaml(path))
        if path.parent != folder.resolve() and (spec.space, spec.metric) == (space, metric):
            found.append(path.parent)
    return found


def _earlier(campaign: Campaign) -> Earlier:
    """Return the numbers of a campaign so far."""
    kept = sorted(proposal.decided_at for proposal in campaign.proposals if proposal.kept)
    return Earlier(
        folder=str(campaign.folder.resolve()),
        started=campaign.started["time"],
        proposals=len(campaign.proposals),
        kept=kept,
    )
