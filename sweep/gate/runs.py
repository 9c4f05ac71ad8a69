"""Start the training runs that a campaign needs, as many at a time as fit the machine.

Runs are decided on in rounds. A round has the runs that all open proposals and their baselines need
for their next analyses; its results are recorded together, in the order in which they were asked
for. So the decisions do not depend on which run ends first, and a campaign that was killed and
resumed decides as an undisturbed one. What is proposed during a round joins it.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
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
_LOOK_S = 1.0  # between two looks for new proposals

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Runs:
    """Runs of a configuration that are needed now."""

    need: Need
    batch: Batch
    arm: Arm


def run_until_decided(folder: Path, *, parallel: int | None = None) -> GateVerdict:
    """Start the required runs until all open proposals are kept or discarded, or the open
    re-check is decided; without one, until the baseline is measured. Return the last decision.

    One process at a time runs a campaign. The campaign itself is locked only while results are
    recorded, so other processes may propose, record and withdraw in the meantime. Runs that cannot
    end, or that the machine kills, do not keep other proposals from being decided.

    Args:
        folder: the campaign's folder.
        parallel: maximum number of concurrent runs; None: as many as fit the machine.

    Raises:
        ConfigError: the campaign has no program, or its runs do not end.
        MissingError: the machine killed a run; the same call runs it again.
        NameInUseError: another process runs the campaign.
        KeyboardInterrupt: it was interrupted; repeat the call to continue.
    """
    faults: dict[str, UserError] = {}  # by batch
    resume = Campaign(folder).command("run")
    with (
        lock_folder(folder / RUNNING, RUNNER),
        RunPool(folder, resume=resume, parallel=parallel) as pool,
    ):
        while True:
            with Campaign(folder).change() as campaign:
                _check_can_run(campaign)
                verdict = campaign.decide()
                if verdict.outcome != "more" and not campaign.open_proposals:
                    return verdict
                waiting = campaign.verdict()
                if waiting.outcome != "more":
                    return waiting
                needed = _needed_runs(campaign, waiting.needs)
            runs = [each for each in needed if each.batch.name not in faults]
            if not runs:
                raise faults[needed[0].batch.name]
            results = _run(campaign, pool, runs, faults)
            with Campaign(folder).change() as campaign:
                faults |= _record(campaign, results)


def _check_can_run(campaign: Campaign) -> None:
    if not (campaign.folder / PROGRAM).is_file():
        raise ConfigError(
            "this campaign has no program to run",
            str(campaign.folder),
            f"run the seeds that `{campaign.command('status')}` lists yourself, and "
            f"`{campaign.command('record')} ARM SEED SCORE`",
            code="no-program",
        )


def _needed_runs(campaign: Campaign, needs: Sequence[Need]) -> list[_Runs]:
    """Return the required runs by configuration: several proposals may need runs of one
    baseline.
    """
    arms: dict[int, tuple[Need, Arm]] = {}
    seeds: dict[int, dict[int, None]] = {}  # as a set that keeps its order
    for need in needs:
        arm = campaign.target(need.arm, need.seeds[0], need.proposal)
        assert arm is not None  # only existing configurations need runs
        arms.setdefault(id(arm), (need, arm))
        seeds.setdefault(id(arm), {}).update(dict.fromkeys(need.seeds))
    runs = []
    for key, (need, arm) in arms.items():
        batch = Batch(
            name=batch_name(_label(campaign, need, arm), tuple(seeds[key])),
            settings=arm.settings,
            command=arm.command,
            seeds=tuple(seeds[key]),
        )
        runs.append(_Runs(need, batch, arm))
    return runs


class _Round:
    """Runs that are started, and their results so far."""

    def __init__(self, pool: RunPool) -> None:
        self._pool = pool
        self.runs: list[_Runs] = []
        self.results: dict[str, BatchResults | UserError] = {}
        self._places: dict[str, Place] = {}  # by revision

    def start(self, campaign: Campaign, runs: Sequence[_Runs]) -> None:
        """Start runs. The error of a run that cannot start is its result."""
        for each in runs:
            self.runs.append(each)
            name = each.batch.name
            _logger.info("%s: seeds %s", name, ", ".join(map(str, each.batch.seeds)))
            try:
                self._pool.submit(each.batch, self._place(campaign, each.arm))
            except UserError as error:
                self.results[name] = error

    def wait(self, timeout: float) -> None:
        """Wait until runs have ended, for so many seconds at most."""
        self.results |= self._pool.wait(timeout)

    def are_running(self, runs: Sequence[_Runs]) -> bool:
        """Return whether some runs have no result yet."""
        return any(each.batch.name not in self.results for each in runs)

    def _place(self, campaign: Campaign, arm: Arm) -> Place:
        """Return where a configuration runs: in the current folder, or in a checkout of its
        revision. A checkout is restored only once in a round: later, runs may be using it.

        Raises:
            ConfigError: it runs in the current folder, and its files have changed.
            MissingError: its revision cannot be checked out.
        """
        if arm.revision is None:
            check_files(arm.files, campaign.folder)
            return Place(Path.cwd())
        if arm.revision not in self._places:
            folder = git.checkout(campaign.folder, arm.revision, campaign.protected)
            self._places[arm.revision] = Place(folder, is_checkout=True)
        return self._places[arm.revision]


def _run(
    campaign: Campaign, pool: RunPool, runs: Sequence[_Runs], faults: Collection[str]
) -> list[tuple[_Runs, BatchResults | UserError]]:
    """Run a round, and return its results in the order in which they were asked for. While it runs,
    new proposals join it. Batches that could not end in an earlier round, ``faults``, do not start.
    """
    this = _Round(pool)
    this.start(campaign, runs)
    events = campaign.folder / "events.jsonl"
    size = events.stat().st_size
    while this.are_running(this.runs):
        this.wait(_LOOK_S)
        if this.are_running(runs) and events.stat().st_size != size:
            size = events.stat().st_size
            current = Campaign(campaign.folder)
            new = _new_runs(current, this.runs)
            this.start(current, [each for each in new if each.batch.name not in faults])
    return [(each, this.results[each.batch.name]) for each in this.runs]


def _new_runs(campaign: Campaign, running: Sequence[_Runs]) -> list[_Runs]:
    """Return the runs of proposals that are not running yet."""
    verdict = campaign.verdict()
    if verdict.outcome != "more":
        return []
    proposals = {each.need.proposal for each in running}
    needs = [need for need in verdict.needs if need.proposal not in proposals]
    return _needed_runs(campaign, needs)


def _record(
    campaign: Campaign, results: Sequence[tuple[_Runs, BatchResults | UserError]]
) -> dict[str, UserError]:
    """Record the results of a round. Return the errors of batches that did not run, or of which the
    machine killed a run, by name.
    """
    faults: dict[str, UserError] = {}
    finished = []
    for runs, own in results:
        name = runs.batch.name
        if isinstance(own, UserError):
            faults[name] = _with_withdrawal(campaign, runs.need, own)
            continue
        if own.killed:
            faults[name] = _killed(campaign, name, own.killed)
        finished.append(
            Finished(
                arm=runs.need.arm,
                scores=own.scores,
                failed=own.failed,
                guards=own.guards,
                proposal=runs.need.proposal,
            )
        )
    campaign.record_batch(finished)
    return faults


def _with_withdrawal(campaign: Campaign, need: Need, error: UserError) -> UserError:
    """Return the error of a batch with a hint to the command that gives its proposal up."""
    if need.proposal is None:
        return error
    command = campaign.command("withdraw", "--proposal", str(need.proposal))
    hint = f"{error.hint}. `{command}` withdraws the proposal"
    return type(error)(error.what, error.where, hint, error.key, code=error.code)


def _killed(campaign: Campaign, name: str, killed: Mapping[int, str]) -> MissingError:
    seed, reason = next(iter(killed.items()))
    return MissingError(
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
