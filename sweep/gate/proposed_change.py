"""Propose a change to the program of a campaign: a rule for each part of the proposal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweep.gate import git
from sweep.gate.arm import Arm
from sweep.gate.batch import Batch, batch_space
from sweep.gate.campaign import Campaign
from sweep.gate.command_words import check_words
from sweep.gate.earlier_campaigns import refuse_after_later
from sweep.gate.program_files import file_digests, refuse_uncommitted
from sweep.gate.proposal import Proposal
from sweep.gate.spec import PROGRAM
from sweep.space.file import load_space
from sweep.space.spec import SweepSpec


def propose_change(
    campaign: Campaign,
    settings: Mapping[str, Any],
    *,
    command: Sequence[str] | None,
    revision: str | None,
    note: str,
) -> Proposal:
    """Check a proposal and add it to a campaign. Call it in `Campaign.change`.

    Args:
        campaign: the campaign.
        settings: changed settings.
        command: new command line; None: that of the baseline.
        revision: commit in which the command runs; None: that of the baseline.
        note: description of the change.

    Raises:
        UserError: a later campaign continues the error budget, the program does not accept the
            change, it has uncommitted changes, or as in `Campaign.propose`.
    """
    refuse_after_later(campaign)
    if not (campaign.folder / PROGRAM).is_file():  # the user starts the runs
        return campaign.propose(settings, command=command, revision=revision, note=note)
    base = campaign.baseline
    space = load_space(campaign.folder / PROGRAM)
    defaults = default_settings(space, base, settings)
    check_command(command, base, space)
    check_committed(revision, base)
    check_program(campaign.folder, {**base.settings, **settings}, command=command or base.command)
    return campaign.propose(
        settings,
        command=command,
        revision=recorded_revision(revision, base),
        note=note,
        defaults=defaults,
        files=files_of_command(command, revision, base, campaign.folder),
    )


def default_settings(space: SweepSpec, base: Arm, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the program's defaults of the settings of a proposal and of the baseline: proposing a
    default value is not a change.
    """
    return dict(space.program.values({}, [*base.settings, *settings]))


def check_command(command: Sequence[str] | None, base: Arm, space: SweepSpec) -> None:
    """Reject a new command line that is probably a mistake, see `check_words`.

    Raises:
        ConfigError: as in `check_words`.
    """
    if command is not None and space.external is not None:
        check_words(command, base.command or space.external.command)


def check_committed(revision: str | None, base: Arm) -> None:
    """Reject uncommitted changes if the proposal runs in the current commit or does not name any:
    they would not be part of its runs.

    Raises:
        ConfigError: tracked files have uncommitted changes.
    """
    if base.revision is not None and revision in (None, git.head()):
        refuse_uncommitted()


def recorded_revision(revision: str | None, base: Arm) -> str | None:
    """Return the commit to record: that of the baseline if both contain the same files, because
    another commit alone is not a change.
    """
    if base.revision and revision and git.same_files(base.revision, revision):
        return base.revision
    return revision


def files_of_command(
    command: Sequence[str] | None, revision: str | None, base: Arm, campaign: Path
) -> dict[str, str]:
    """Return path -> SHA-256 of the files of a new command line, which no commit identifies; empty
    if the proposal runs in a checkout, or has no new command line.
    """
    if command is None or base.revision is not None or revision is not None:
        return {}
    return file_digests(command, campaign)


def check_program(folder: Path, settings: Mapping[str, Any], command: Sequence[str] | None) -> None:
    """Check that the program stored in a folder accepts these settings, before anything runs.

    Raises:
        UserError: it does not.
    """
    words = None if command is None else list(command)
    batch_space(folder, Batch(name="check", settings=dict(settings), command=words, seeds=(0,)))
