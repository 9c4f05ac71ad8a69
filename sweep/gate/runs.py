"""Run the trainings that a campaign needs, in the cheapest order."""

import logging
from pathlib import Path

from loptune.errors import ConfigError, MissingError
from sweep.gate import git
from sweep.gate.arm import BASELINE, Arm
from sweep.gate.batch import Batch, batch_name, run_batch
from sweep.gate.campaign import Campaign
from sweep.gate.program_files import check_files
from sweep.gate.spec import PROGRAM
from sweep.gate.verdict import GateVerdict, Need

_logger = logging.getLogger(__name__)


def run_until_decided(campaign: Campaign) -> GateVerdict:
    """Run the required trainings until the open proposal is kept or discarded, or the open re-check
    is decided; without one, until the baseline's noise is known.

    Raises:
        ConfigError: the campaign has no program, or its runs do not end.
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
        if verdict.outcome != "more":
            return verdict
        # Only the first: if the baseline fails on a seed, the other arm does not need it either.
        _run(campaign, verdict.needs[0])


def _run(campaign: Campaign, need: Need) -> None:
    """Run one arm on some seeds and record the scores."""
    arm = campaign.target(need.arm, need.seeds[0], need.proposal)
    assert arm is not None  # the campaign needs its runs
    label = _label(campaign, need, arm)
    batch = Batch(
        name=batch_name(label, need.seeds),
        settings=arm.settings,
        command=arm.command,
        seeds=need.seeds,
    )
    _logger.info("%s: seeds %s", label, ", ".join(map(str, need.seeds)))
    place = _place(campaign, arm)
    checked_out = arm.revision is not None
    results = run_batch(campaign.folder, batch, place, checked_out=checked_out)
    campaign.record_batch(
        need.arm, scores=results.scores, failed=results.failed, proposal=need.proposal
    )
    if results.killed:
        seed, reason = next(iter(results.killed.items()))
        raise MissingError(
            f"seed {seed} of {label} was killed, probably by the machine: {reason}",
            str(campaign.folder / "runs" / batch.name),
            "this is not evidence against the change: free memory or cores, then "
            f"`{campaign.command('run')}` runs it again",
            code="run-killed",
        )


def _label(campaign: Campaign, need: Need, arm: Arm) -> str:
    """Return the name of a configuration of the campaign, for its sweeps."""
    if campaign.open_recheck is not None:
        return f"recheck-{len(campaign.rechecks)}-{need.arm}"
    if need.arm == BASELINE:
        index = next(place for place, each in enumerate(campaign.baselines) if each is arm)
        return f"baseline-{index}"
    return f"proposal-{need.proposal}"


def _place(campaign: Campaign, arm: Arm) -> Path:
    """Return the folder in which a configuration runs: here, or a checkout of its revision.

    Raises:
        ConfigError: it runs here, and its files have changed.
    """
    if arm.revision is None:
        check_files(arm.files, campaign.folder)
        return Path.cwd()
    return git.checkout(campaign.folder, arm.revision, campaign.protected)
