"""Start the training runs that a campaign needs, as many at a time as fit the machine.

Runs are started in rounds. A round consists of the runs that all open proposals and their baselines
need for their next analyses. Its results are recorded together, in the order in which the runs were
requested. So decisions do not depend on which run ends first, and a campaign that was killed and
resumed makes the same decisions as an uninterrupted one. Changes that are proposed during a round
join it.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loptune.errors import ConfigError, MissingError, UserError
from loptune.run_names import RUNNER, lock_folder
from sweep.gate import git
from sweep.gate.arm import BASELINE, Arm
from sweep.gate.batch import Batch, BatchResults, batch_name
from sweep.gate.campaign import Campaign, Finished
from sweep.gate.pool import Place, RunPool
from sweep.gate.program_files import check_files
from sweep.gate.spec import PROGRAM
from sweep.gate.verdict import GateVerdict, Need

RUNNING = ".running"  # folder that is locked by the process that runs a campaign
_LOOK_S = 1.0  # seconds between two checks for new proposals

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _NeededBatch:
    """Runs of a configuration that are needed now."""

    need: Need
    batch: Batch
    arm: Arm


_Results = list[tuple[_NeededBatch, BatchResults | UserError]]


def run_until_decided(folder: Path, *, parallel: int | None = None) -> GateVerdict:
    """Start the required runs until all open proposals are kept or discarded, or the open re-check
    is decided. If nothing is open, run until the baseline is measured. Return the last decision.

    One process at a time runs a campaign. The campaign itself is locked only while results are
    recorded, so other processes may propose, record and withdraw in the meantime. Other proposals
    are still decided if a run cannot finish or the machine kills it.

    Args:
        folder: the campaign's folder.
        parallel: maximum number of concurrent runs; None: as many as fit on the machine.

    Raises:
        ConfigError: the campaign has no program, or its runs cannot finish.
        MissingError: the machine killed a run; call again to repeat the run.
        NameInUseError: another process runs the campaign.
        KeyboardInterrupt: the user interrupted the runs; call again to continue.
    """
    faults: dict[str, UserError] = {}  # name of a batch -> why it could not finish
    resume = Campaign.read(folder).command("run")
    with (
        lock_folder(folder / RUNNING, RUNNER),
        RunPool(folder, resume=resume, parallel=parallel) as pool,
    ):
        while True:
            with Campaign.read(folder).change() as campaign:
                _check_can_run(campaign)
                verdict = _decide(campaign)
                if verdict.outcome != "more":
                    return verdict
                current_round = _Round(pool, campaign, faults)
            results = current_round.finish(_needed_batches(campaign, verdict.needs))
            with Campaign.read(folder).change() as campaign:
                faults |= _record(campaign, results)


def _decide(campaign: Campaign) -> GateVerdict:
    """Decide the open re-check, or every proposal that can be decided. Return the last decision if
    nothing else is open, otherwise the runs that are needed.
    """
    decision = campaign.decide()
    if decision.outcome != "more" and not campaign.open_proposals:
        return decision
    return campaign.verdict()


def _check_can_run(campaign: Campaign) -> None:
    if not (campaign.folder / PROGRAM).is_file():
        raise ConfigError(
            "this campaign has no program to run",
            str(campaign.folder),
            f"run the seeds that `{campaign.command('status')}` lists yourself, and record each "
            f"score with `{campaign.command('record')} ARM SEED SCORE`",
            code="no-program",
        )


def _needed_batches(campaign: Campaign, needs: Sequence[Need]) -> list[_NeededBatch]:
    """Return the required runs, merged by configuration because several proposals may need runs of
    the same baseline.
    """
    arms: dict[int, tuple[Need, Arm]] = {}
    seeds: dict[int, dict[int, None]] = {}  # inner dicts are ordered sets
    for need in needs:
        arm = campaign.target(need.arm, need.seeds[0], need.proposal)
        assert arm is not None  # only existing configurations need runs
        arms.setdefault(id(arm), (need, arm))
        seeds.setdefault(id(arm), {}).update(dict.fromkeys(need.seeds))
    batches = []
    for key, (need, arm) in arms.items():
        batch = Batch(
            name=batch_name(_label(campaign, need, arm), tuple(seeds[key])),
            settings=arm.settings,
            command=arm.command,
            seeds=tuple(seeds[key]),
        )
        batches.append(_NeededBatch(need, batch, arm))
    return batches


class _Round:
    """A round of runs, and their results so far.

    Args:
        pool: starts the runs.
        campaign: state of the campaign, which is locked until the round exists. Proposals that are
            recorded later join the round.
        faults: errors of batches that could not finish in an earlier round. These batches are not
            started again.
    """

    def __init__(self, pool: RunPool, campaign: Campaign, faults: Mapping[str, UserError]) -> None:
        self._pool = pool
        self._campaign = campaign
        self._events_size = _events_size(campaign)
        self._faults = faults
        self._batches: list[_NeededBatch] = []
        self._results: dict[str, BatchResults | UserError] = {}
        self._places: dict[str, Place] = {}  # revision -> place

    def finish(self, needed: Sequence[_NeededBatch]) -> _Results:
        """Run the needed batches, and batches of proposals that are made in the meantime. Return
        the results in the order in which the batches were requested.

        Raises:
            UserError: every needed batch failed to finish in an earlier round; the error of the
                first one.
        """
        batches = self._without_faults(needed)
        if not batches:
            raise self._faults[needed[0].batch.name]
        self._start(batches)
        while self._are_running(self._batches):
            self._results |= self._pool.wait(_LOOK_S)
            if self._are_running(batches):
                self._start(self._without_faults(self._newly_needed()))
        return [(each, self._results[each.batch.name]) for each in self._batches]

    def _without_faults(self, batches: Iterable[_NeededBatch]) -> list[_NeededBatch]:
        return [each for each in batches if each.batch.name not in self._faults]

    def _start(self, batches: Sequence[_NeededBatch]) -> None:
        """Start batches. If a batch cannot start, the error is recorded as its result."""
        for each in batches:
            self._batches.append(each)
            name = each.batch.name
            _logger.info("%s: seeds %s", name, ", ".join(map(str, each.batch.seeds)))
            try:
                self._pool.submit(each.batch, self._place(each.arm))
            except UserError as error:
                self._results[name] = error

    def _are_running(self, batches: Sequence[_NeededBatch]) -> bool:
        """Return whether any of the batches has no result yet."""
        return any(each.batch.name not in self._results for each in batches)

    def _newly_needed(self) -> list[_NeededBatch]:
        """Return the batches of proposals that were recorded since the campaign was last read."""
        size = _events_size(self._campaign)
        if size == self._events_size:
            return []
        self._events_size = size
        self._campaign = Campaign.read(self._campaign.folder)
        verdict = self._campaign.verdict()
        if verdict.outcome != "more":
            return []
        running = {each.need.proposal for each in self._batches}
        needs = [need for need in verdict.needs if need.proposal not in running]
        return _needed_batches(self._campaign, needs)

    def _place(self, arm: Arm) -> Place:
        """Return where a configuration runs: in the current folder, or in a checkout of its
        revision. A checkout is restored only once per round, because runs of the round may be using
        it later.

        Raises:
            ConfigError: the configuration runs in the current folder, and its files have changed.
            MissingError: its revision cannot be checked out.
        """
        campaign = self._campaign
        if arm.revision is None:
            check_files(arm.files, campaign.folder)
            return Place(Path.cwd())
        if arm.revision not in self._places:
            folder = git.checkout(campaign.folder, arm.revision, campaign.protected)
            self._places[arm.revision] = Place(folder, is_checkout=True)
        return self._places[arm.revision]


def _events_size(campaign: Campaign) -> int:
    return (campaign.folder / "events.jsonl").stat().st_size


def _record(campaign: Campaign, results: _Results) -> dict[str, UserError]:
    """Record the results of a round. Return batch name -> error for each batch that could not run
    or in which the machine killed a run.
    """
    faults: dict[str, UserError] = {}
    finished = []
    for needed, result in results:
        name = needed.batch.name
        if isinstance(result, UserError):
            faults[name] = _with_withdrawal(campaign, needed.need, result)
            continue
        if result.killed:
            faults[name] = _killed(campaign, name, result.killed)
        finished.append(
            Finished(
                arm=needed.need.arm,
                scores=result.scores,
                failed=result.failed,
                guards=result.guards,
                proposal=needed.need.proposal,
            )
        )
    campaign.record_batch(finished)
    return faults


def _with_withdrawal(campaign: Campaign, need: Need, error: UserError) -> UserError:
    """Return the error of a batch, with the command that withdraws the proposal in its hint."""
    if need.proposal is None:
        return error
    command = campaign.command("withdraw", "--proposal", str(need.proposal))
    return error.with_hint(f"{error.hint}. `{command}` withdraws the proposal")


def _killed(campaign: Campaign, name: str, killed: Mapping[int, str]) -> MissingError:
    seeds = ", ".join(map(str, sorted(killed)))
    reasons = "; ".join(sorted(set(killed.values())))
    return MissingError(
        f"runs of {name} were killed, probably by the operating system (seeds: {seeds}): {reasons}",
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
