"""Start the training runs that a campaign needs, in the cheapest order."""

import logging
from collections.abc import Sequence
from pathlib import Path

from loptune.errors import ConfigError, MissingError
from loptune.run_names import RUNNER, lock_folder
from sweep.gate import git
from sweep.gate.arm import BASELINE, PROPOSAL, Arm
from sweep.gate.batch import (
    Batch,
    BatchResults,
    batch_name,
    batch_space,
    complete_settings,
    run_batch,
)
from sweep.gate.campaign import Campaign, Finished
from sweep.gate.program_files import check_files
from sweep.gate.spec import PROGRAM
from sweep.gate.verdict import GateVerdict, Need

RUNNING = ".running"  # folder that is locked by the process that runs a campaign

_logger = logging.getLogger(__name__)


def run_until_decided(folder: Path, *, parallel: int | None = None) -> GateVerdict:
    """Start the required runs until all open proposals are kept or discarded, or the open
    re-check is decided; without one, until the baseline is measured. Return the last decision.

    One process at a time runs a campaign. The campaign itself is locked only while results are
    recorded, so others may propose, record and withdraw in the meantime.

    Args:
        folder: the campaign's folder.
        parallel: maximum number of concurrent runs; None: as many as fit the machine.

    Raises:
        ConfigError: the campaign has no program, or its runs do not end.
        MissingError: the machine killed a run; the same call runs it again.
        NameInUseError: another process runs the campaign.
        KeyboardInterrupt: it was interrupted; repeat the call to continue.
    """
    with lock_folder(folder / RUNNING, RUNNER):
        while True:
            with Campaign(folder).change() as campaign:
                _check_can_run(campaign)
                verdict = campaign.decide()
                if verdict.outcome != "more" and not campaign.open_proposals:
                    return verdict
                waiting = campaign.verdict()
                if waiting.outcome != "more":
                    return waiting
                needs, batch, arm = _next_batch(campaign, waiting.needs)
            _logger.info("%s: seeds %s", batch.name, ", ".join(map(str, batch.seeds)))
            results = run_batch(
                folder,
                batch,
                _place(campaign, arm),
                checked_out=arm.revision is not None,
                parallel=parallel,
            )
            with Campaign(folder).change() as campaign:
                _record(campaign, needs, batch.name, results)


def _check_can_run(campaign: Campaign) -> None:
    if not (campaign.folder / PROGRAM).is_file():
        raise ConfigError(
            "this campaign has no program to run",
            str(campaign.folder),
            f"run the seeds that `{campaign.command('status')}` asks for yourself, "
            f"and `{campaign.command('record')} ARM SEED SCORE`",
            code="no-program",
        )


def _next_batch(campaign: Campaign, needs: Sequence[Need]) -> tuple[list[Need], Batch, Arm]:
    """Return the required runs that are next, their sweep, and the first of its configurations.

    A baseline runs before the proposals: if it fails on a seed, proposals do not need the seed
    either. Proposals that run the same program on the same seeds run together, unless the program
    accepts them only one at a time.
    """
    first = needs[0]
    arm = _arm(campaign, first)
    batch = Batch(
        name=batch_name(_label(campaign, first, arm), first.seeds),
        settings=arm.settings,
        command=arm.command,
        seeds=first.seeds,
    )
    together = [first]
    if first.arm == PROPOSAL:
        for need in needs[1:]:
            joint = _joint_batch(campaign, [*together, need])
            if joint is not None:
                together.append(need)
                batch = joint
    return together, batch, arm


def _joint_batch(campaign: Campaign, needs: Sequence[Need]) -> Batch | None:
    """Return the sweep of several proposals; None if one sweep cannot run them. A sweep must not
    vary every setting that a proposal may change: for example how often a score is measured.
    """
    if {(need.arm, need.seeds) for need in needs} != {(PROPOSAL, needs[0].seeds)}:
        return None
    arms = [_arm(campaign, need) for need in needs]
    first = arms[0]
    if any((arm.command, arm.revision) != (first.command, first.revision) for arm in arms):
        return None
    settings = complete_settings(campaign.folder, [arm.settings for arm in arms])
    if settings is None:
        return None
    label = "proposals-" + "-".join(str(need.proposal) for need in needs)
    batch = Batch(
        name=batch_name(label, needs[0].seeds),
        settings=settings[0],
        command=first.command,
        seeds=needs[0].seeds,
        further=tuple(settings[1:]),
    )
    try:
        batch_space(campaign.folder, batch)
    except ConfigError:
        return None
    return batch


def _arm(campaign: Campaign, need: Need) -> Arm:
    arm = campaign.target(need.arm, need.seeds[0], need.proposal)
    assert arm is not None  # only existing arms need runs
    return arm


def _record(
    campaign: Campaign, needs: Sequence[Need], name: str, results: Sequence[BatchResults]
) -> None:
    """Record the scores of a batch.

    Raises:
        MissingError: the machine killed one of its runs.
    """
    killed: dict[int, str] = {}
    finished = []
    for need, own in zip(needs, results, strict=True):
        finished.append(
            Finished(
                arm=need.arm,
                scores=own.scores,
                failed=own.failed,
                guards=own.guards,
                proposal=need.proposal,
            )
        )
        killed |= own.killed
    campaign.record_batch(finished)
    if killed:
        seed, reason = next(iter(killed.items()))
        raise MissingError(
            f"seed {seed} of {name} was killed, probably by the machine: {reason}",
            str(campaign.folder / "runs" / name),
            "this is not evidence against the change: free memory or cores, then "
            f"`{campaign.command('run')}` runs it again",
            code="run-killed",
        )


def _label(campaign: Campaign, need: Need, arm: Arm) -> str:
    """Return the label of a configuration, which starts the names of its sweeps."""
    if campaign.open_recheck is not None:
        return f"recheck-{len(campaign.rechecks)}-{need.arm}"
    if need.arm == BASELINE:
        index = next(place for place, each in enumerate(campaign.baselines) if each is arm)
        return f"baseline-{index}"
    return f"proposal-{need.proposal}"


def _place(campaign: Campaign, arm: Arm) -> Path:
    """Return the folder in which a configuration runs: the current one, or a checkout of its
    revision.

    Raises:
        ConfigError: it runs in the current folder, and its files have changed.
    """
    if arm.revision is None:
        check_files(arm.files, campaign.folder)
        return Path.cwd()
    return git.checkout(campaign.folder, arm.revision, campaign.protected)
