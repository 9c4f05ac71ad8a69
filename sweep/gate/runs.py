"""Run the trainings that a campaign needs, in the cheapest order."""

import logging
import subprocess
from pathlib import Path

from loptune.errors import ConfigError, MissingError
from sweep.gate.arm import BASELINE, FIRST, Arm
from sweep.gate.batch import PROGRAM, Batch, batch_name, run_batch
from sweep.gate.campaign import Campaign, GateVerdict, Need

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
        for need in verdict.needs:
            _run(campaign, need)


def _run(campaign: Campaign, need: Need) -> None:
    """Run one arm on some seeds and record the scores."""
    arm: Arm
    checked = campaign.open_recheck
    if checked is not None:
        arm = checked.first if need.arm == FIRST else checked.latest
        label = f"recheck-{len(campaign.rechecks)}-{need.arm}"
    elif need.arm == BASELINE:
        arm = campaign.baseline
        label = f"baseline-{len(campaign.baselines) - 1}"
    else:
        assert campaign.open is not None
        arm = campaign.open
        label = f"proposal-{campaign.open.number}"
    batch = Batch(
        name=batch_name(label, need.seeds),
        settings=arm.settings,
        command=arm.command,
        seeds=need.seeds,
    )
    _logger.info("%s: seeds %s", label, ", ".join(map(str, need.seeds)))
    results = run_batch(campaign.folder, batch, _place(campaign.folder, arm))
    campaign.record_batch(need.arm, scores=results.scores, failed=results.failed)
    if results.killed:
        seed, reason = next(iter(results.killed.items()))
        raise MissingError(
            f"seed {seed} of {label} was killed, probably by the machine: {reason}",
            str(campaign.folder / "runs" / batch.name),
            "this is no evidence against the change: free memory or cores, then "
            f"`{campaign.command('run')}` runs it again",
            code="run-killed",
        )


def _place(folder: Path, arm: Arm) -> Path:
    """Return the folder in which a configuration runs: here, or a checkout of its revision."""
    if arm.revision is None:
        return Path.cwd()
    checkout = folder.resolve() / "checkouts" / arm.revision
    if not checkout.is_dir():
        checkout.parent.mkdir(exist_ok=True)
        _git("worktree", "add", "--detach", str(checkout), arm.revision)
    return checkout / _git("rev-parse", "--show-prefix").strip()


def full_revision(text: str) -> str:
    """Return the commit that a revision names now.

    Raises:
        MissingError: there is no such revision, or no git repository here.
    """
    return _git("rev-parse", "--verify", f"{text}^{{commit}}").strip()


def _git(*words: str) -> str:
    try:
        ended = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise MissingError("git is not installed", "git", "install it", code="no-git") from None
    if ended.returncode:
        raise MissingError(
            f"git {words[0]} failed: {ended.stderr.strip()}",
            str(Path.cwd()),
            "name a revision of the repository in which you start the campaign",
            code="no-revision",
        )
    return ended.stdout
