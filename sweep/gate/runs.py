"""Run the trainings that a campaign needs, in the cheapest order."""

import logging
from collections.abc import Sequence
from pathlib import Path

from loptune.errors import ConfigError, MissingError
from sweep.gate import git
from sweep.gate.arm import BASELINE, PROPOSAL, Arm
from sweep.gate.batch import Batch, batch_name, complete_settings, run_batch
from sweep.gate.campaign import Campaign
from sweep.gate.program_files import check_files
from sweep.gate.spec import PROGRAM
from sweep.gate.verdict import GateVerdict, Need

_logger = logging.getLogger(__name__)


def run_until_decided(campaign: Campaign, *, parallel: int | None = None) -> GateVerdict:
    """Run the required trainings until all open proposals are kept or discarded, or the open
    re-check is decided. If neither is open, stop when the baseline is measured. Return the last
    decision.

    Args:
        campaign: campaign locked with `Campaign.change`.
        parallel: number of parallel runs; None: as many as the machine can run.

    Raises:
        ConfigError: the campaign has no program, or its runs do not finish.
        MissingError: the machine killed a run; the same call runs it again.
        KeyboardInterrupt: it was interrupted; the same call continues.
    """
    if not (campaign.folder / PROGRAM).is_file():
        raise ConfigError(
            "this campaign has no program to run",
            str(campaign.folder),
            f"run the seeds that `{campaign.command('status')}` asks for yourself, "
            f"and `{campaign.command('record')} ARM SEED SCORE`",
            code="no-program",
        )
    while True:
        verdict = campaign.decide()
        if verdict.outcome != "more" and not campaign.open_proposals:
            return verdict
        waiting = campaign.verdict()
        if waiting.outcome != "more":
            return waiting
        _run(campaign, _next_batch(campaign, waiting.needs), parallel)


def _next_batch(campaign: Campaign, needs: Sequence[Need]) -> list[Need]:
    """Return the required runs that are next, for one sweep.

    A baseline runs before the proposals: if it fails on a seed, proposals do not need the seed
    either. Proposals that run the same program on the same seeds run together.
    """
    first = needs[0]
    if first.arm != PROPOSAL:
        return [first]
    together = [first]
    arm = _arm(campaign, first)
    settings = [arm.settings]
    for need in needs[1:]:
        if need.arm != PROPOSAL or need.seeds != first.seeds:
            continue
        other = _arm(campaign, need)
        same_program = (other.command, other.revision) == (arm.command, arm.revision)
        joined = [*settings, other.settings]
        if same_program and complete_settings(campaign.folder, joined) is not None:
            together.append(need)
            settings = joined
    return together


def _arm(campaign: Campaign, need: Need) -> Arm:
    arm = campaign.target(need.arm, need.seeds[0], need.proposal)
    assert arm is not None  # only existing arms need runs
    return arm


def _run(campaign: Campaign, needs: Sequence[Need], parallel: int | None) -> None:
    """Run configurations of one program on the same seeds, and record their scores."""
    arms = [_arm(campaign, need) for need in needs]
    seeds = needs[0].seeds
    label = _label(campaign, needs[0], arms[0])
    settings = [arms[0].settings]
    if len(needs) > 1:
        label = "proposals-" + "-".join(str(need.proposal) for need in needs)
        settings = complete_settings(campaign.folder, [arm.settings for arm in arms]) or []
    batch = Batch(
        name=batch_name(label, seeds),
        settings=settings[0],
        command=arms[0].command,
        seeds=seeds,
        further=tuple(settings[1:]),
    )
    _logger.info("%s: seeds %s", label, ", ".join(map(str, seeds)))
    results = run_batch(
        campaign.folder,
        batch,
        _place(campaign, arms[0]),
        checked_out=arms[0].revision is not None,
        parallel=parallel,
    )
    killed: dict[int, str] = {}
    for need, own in zip(needs, results, strict=True):
        campaign.record_batch(
            need.arm, scores=own.scores, failed=own.failed, proposal=need.proposal
        )
        killed |= own.killed
    if killed:
        seed, reason = next(iter(killed.items()))
        raise MissingError(
            f"seed {seed} of {label} was killed, probably by the machine: {reason}",
            str(campaign.folder / "runs" / batch.name),
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
