"""Find the earlier campaigns of a program."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from loptune.errors import ConfigError, UserError
from loptune.run_names import command_line
from loptune.yaml_document import read_yaml, validate
from sweep.gate.campaign import Campaign
from sweep.gate.earlier import Earlier
from sweep.gate.spec import CampaignSpec
from sweep.search.event_log import read_checked


def earlier_campaigns(
    folder: Path, space: str | None, metric: str, named: Sequence[Path]
) -> list[Earlier]:
    """Return the campaigns whose error budget a new one continues, ordered by start time.

    Args:
        folder: folder of the new campaign. The folders in its parent folder are searched.
        space: search space of the new campaign. Campaigns with the same space and metric are
            found; None: only the ``named`` ones are continued.
        metric: metric of the new campaign.
        named: folders of further campaigns.

    Raises:
        ConfigError: an earlier campaign is damaged, or has an open proposal or re-check.
        MissingError: a named folder contains no campaign.
        StorageError: the events of a named campaign are damaged.
    """
    campaigns = [Campaign.read(path) for path in named]
    if space is not None:
        for path in sorted(folder.resolve().parent.glob("*/campaign.yaml")):
            if path.parent != folder.resolve() and (path.parent / "events.jsonl").is_file():
                campaigns += _with_program(path.parent, space, metric)
    copies = []
    for campaign in campaigns:
        _refuse_open(campaign)
        copies += [Earlier(**fields) for fields in campaign.started.get("earlier", [])]
    # A copy may be older than a re-check, so the campaign's own record replaces it.
    found = {**_latest(copies), **_latest(map(_earlier, campaigns))}
    return [found[started] for started in sorted(found)]


def refuse_after_later(campaign: Campaign) -> None:
    """Reject proposals to a campaign whose error budget is continued by a later one in the same
    parent folder: both would spend the same part of the budget.

    Raises:
        ConfigError: there is a later campaign.
    """
    later = _later(campaign)
    if later is not None:
        raise ConfigError(
            f"the later campaign {later.name} continues the error budget of this one",
            str(campaign.folder),
            f"propose changes there: `{command_line('sweep', 'gate', 'status', str(later))}` "
            "prints the next command",
            code="carried-on",
        )


def _later(campaign: Campaign) -> Path | None:
    """Return the folder of the latest campaign that continues a campaign, or None."""
    found = []
    for path in campaign.folder.resolve().parent.glob("*/events.jsonl"):
        try:
            _, first = next(read_checked(path, advice="", code=""))
        except (UserError, StopIteration):
            continue  # a damaged campaign accepts no proposals
        starts = [fields["started"] for fields in first.get("earlier", [])]
        if campaign.started.get("time") in starts:
            found.append((first["time"], path.parent))
    return max(found)[1] if found else None


def _refuse_open(campaign: Campaign) -> None:
    """Raise if a campaign to continue has an open decision: it may change the number of kept
    proposals, on which the levels of later proposals depend.

    Raises:
        ConfigError: a proposal or a re-check is open.
    """
    if campaign.open_recheck is not None:
        raise ConfigError(
            f"the re-check of the earlier campaign {campaign.folder.name} is undecided",
            str(campaign.folder),
            f"`{campaign.command('status')}` prints the runs that it needs. With --new-budget, the "
            "new campaign does not continue the earlier one",
            code="earlier-open",
        )
    numbers = [str(proposal.number) for proposal in campaign.open_proposals]
    if numbers:
        raise ConfigError(
            f"the earlier campaign {campaign.folder.name} has open proposals: {', '.join(numbers)}",
            str(campaign.folder),
            f"`{campaign.command('status')}` prints the runs that they need; "
            f"`{campaign.command('withdraw')}` withdraws the latest one. With --new-budget, the "
            "new campaign does not continue the earlier one",
            code="earlier-open",
        )


def _latest(records: Iterable[Earlier]) -> dict[float, Earlier]:
    """Return start time -> latest record of each campaign: the record with the most proposals and,
    among such records, the fewest kept proposals, because a re-check may discard some.
    """
    latest = {}
    for each in sorted(records, key=lambda record: (record.proposals, -len(record.kept))):
        latest[each.started] = each
    return latest


def _with_program(folder: Path, space: str, metric: str) -> list[Campaign]:
    """Return the campaign in a folder if it has this space and metric; else an empty list.

    Raises:
        ConfigError: the campaign is damaged.
    """
    try:
        spec = validate(CampaignSpec, read_yaml(folder / "campaign.yaml"))
        return [Campaign.read(folder)] if (spec.space, spec.metric) == (space, metric) else []
    except UserError as error:
        raise ConfigError(
            f"an earlier campaign is damaged: {error.what}",
            str(folder),
            "restore or delete it. With --new-budget, the new campaign does not continue it",
            code="earlier-damaged",
        ) from error


def _earlier(campaign: Campaign) -> Earlier:
    """Return the record of a campaign, from its proposals so far, that a later one continues."""
    kept = sorted(proposal.decided_at for proposal in campaign.proposals if proposal.kept)
    return Earlier(
        folder=str(campaign.folder.resolve()),
        started=campaign.started.get("time", 0.0),
        proposals=len(campaign.proposals),
        kept=kept,
    )
