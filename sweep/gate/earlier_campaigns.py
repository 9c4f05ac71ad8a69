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
    """Return the campaigns whose error budget a new one continues, in the order of their starts.

    Args:
        folder: folder of the new campaign. The folders in its parent folder are searched.
        space: search space of the new campaign; other campaigns with the same one are found.
        metric: metric of the new campaign.
        named: folders of further campaigns.

    Raises:
        ConfigError: an earlier campaign is damaged.
        MissingError: a named folder contains no campaign.
    """
    campaigns = [Campaign(path) for path in named]
    if space is not None:
        for path in sorted(folder.resolve().parent.glob("*/campaign.yaml")):
            if path.parent != folder.resolve() and (path.parent / "events.jsonl").is_file():
                campaigns += _with_program(path.parent, space, metric)
    found: dict[float, Earlier] = {}
    for campaign in campaigns:
        known = [Earlier(**fields) for fields in campaign.started.get("earlier", [])]
        for each in [*known, _earlier(campaign)]:
            before = found.get(each.started)
            if before is None or before.proposals < each.proposals:
                found[each.started] = each
    return [found[started] for started in sorted(found)]


def _with_program(folder: Path, space: str, metric: str) -> list[Campaign]:
    """Return the campaign of a folder if it runs a space for a metric.

    Raises:
        ConfigError: it is damaged.
    """
    try:
        spec = validate(CampaignSpec, read_yaml(folder / "campaign.yaml"))
        return [Campaign(folder)] if (spec.space, spec.metric) == (space, metric) else []
    except UserError as error:
        raise ConfigError(
            f"an earlier campaign is damaged: {error.what}",
            str(folder),
            "restore or delete it. With --new-budget, the campaign starts without it",
            code="earlier-damaged",
        ) from error


def _earlier(campaign: Campaign) -> Earlier:
    """Return the numbers of a campaign so far."""
    kept = sorted(proposal.decided_at for proposal in campaign.proposals if proposal.kept)
    return Earlier(
        folder=str(campaign.folder.resolve()),
        started=campaign.started.get("time", 0.0),
        proposals=len(campaign.proposals),
        kept=kept,
    )
