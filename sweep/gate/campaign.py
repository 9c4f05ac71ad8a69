"""A campaign: a baseline, and a sequence of proposals that are kept or discarded.

A campaign is a folder:

    campaign.yaml  settings: program, objective, worthwhile gain, false-keep rate, seeds
    events.jsonl   baselines, proposals, scores, decisions and re-checks in chronological order,
                   each with a checksum
    runs/          the sweeps with the training runs, if loptune ran them

The state is computed from these events (`sweep.gate.state`). A kept proposal becomes the next
baseline and runs again on fresh seeds, because its own scores were selected and are biased upward.
"""

import hashlib
import math
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dashboards.statistics.campaign_noise import SeedModel
from loptune.errors import ConfigError, MissingError, StorageError
from loptune.files import JsonLines, Record, storage_error, write_atomically
from loptune.run_names import CAMPAIGN, command_line, lock_folder
from loptune.yaml_document import dump_yaml, nearest, read_yaml, validate
from sweep.gate import git
from sweep.gate.arm import BASELINE, FIRST, PROPOSAL, Arm, ArmName
from sweep.gate.earlier import Earlier, as_records
from sweep.gate.limits import are_all_made, spent, within_limits
from sweep.gate.program_files import check_files
from sweep.gate.proposal import Proposal
from sweep.gate.recheck import SEEDS_APART, Recheck
from sweep.gate.seeds import SEEDS_OF_A_BASELINE
from sweep.gate.spec import PROGRAM, CampaignSpec
from sweep.gate.state import State, UnknownEventError
from sweep.gate.verdict import GateVerdict, Judge, numbers, recorded_verdict
from sweep.search.event_log import read_checked, with_checksum

# in the order in which they are written: campaign.yaml, which marks a complete campaign, is last
_FILES = (".gitignore", PROGRAM, "events.jsonl", "campaign.yaml")
_MAKING = ".making"  # subfolder for the files until all are complete
# A process holds the lock only while it records an event, never during training.
_PATIENCE_S = 60.0
_DAMAGED = "restore it from a backup, or start a campaign in another folder"


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The results of a configuration's runs that ended together."""

    arm: ArmName
    scores: Mapping[int, float]
    failed: Mapping[int, str]  # seed -> reason
    # metric of a guard -> seed -> value
    guards: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    proposal: int | None = None  # number of the proposal, if one ran


class Campaign(State):
    """The state of a campaign in a folder. Events can only be added within `change`."""

    def __init__(self, folder: Path, spec: CampaignSpec, events: Iterable[Record]) -> None:
        """Replay the events of a campaign.

        Raises:
            UnknownEventError: an event does not fit this version, or the events before it.
        """
        super().__init__()
        self.folder = folder
        self.spec = spec
        self._writer: JsonLines | None = None
        for number, event in enumerate(events, start=1):
            try:
                self.apply(event)
            except UnknownEventError as error:
                error.number = number
                raise

    @classmethod
    def read(cls, folder: Path) -> "Campaign":
        """Read the campaign in a folder.

        Raises:
            MissingError: the folder contains no campaign.
            ConfigError: ``campaign.yaml`` is invalid or was edited.
            StorageError: ``events.jsonl`` is damaged, was edited, or contains an event of another
                version.
        """
        path = folder / "campaign.yaml"
        if not path.is_file():
            start = command_line("sweep", "gate", "start", str(folder), "--worthwhile", "0.01")
            raise MissingError(
                f"no campaign in {folder}", str(path), f"`{start}` starts one", code="no-campaign"
            )
        spec = validate(CampaignSpec, read_yaml(path))
        path = folder / "events.jsonl"
        lines = read_checked(path, advice=_DAMAGED, code="campaign-checksum")
        try:
            campaign = cls(folder, spec, (event for _, event in lines))
        except UnknownEventError as error:  # the line's checksum shows that it is not damaged
            raise StorageError(
                f"a different version of loptune recorded an event of this campaign: {error}",
                f"{path}:{error.number}",
                "continue with the version that recorded it, or start a campaign in another folder",
                code="of-another-version",
            ) from error
        campaign._check_spec(campaign.started.get("campaign"))
        campaign._check_program(campaign.started.get("program"))
        return campaign

    @property
    def _judge(self) -> Judge:
        return Judge(self, self.spec, self.folder)

    @property
    def protected(self) -> git.Protected | None:
        """The evaluation files that every revision takes from the first baseline."""
        revision = self.baselines[0].revision
        if revision is None or not self.spec.protect:
            return None
        return git.Protected(revision, tuple(self.spec.protect))

    @contextmanager
    def change(self) -> Iterator["Campaign"]:
        """Lock the campaign for this process and yield its current state.

        Raises:
            NameInUseError: another process has the lock.
            StorageError: the folder cannot be written, or was moved away.
        """
        with lock_folder(self.folder, CAMPAIGN, create=False, patience=_PATIENCE_S):
            current = Campaign.read(self.folder)
            current._writer = JsonLines(self.folder / "events.jsonl", create=False)
            yield current

    def propose(
        self,
        settings: Mapping[str, Any],
        *,
        command: Sequence[str] | None = None,
        revision: str | None = None,
        note: str = "",
        defaults: Mapping[str, Any] | None = None,
        files: Mapping[str, str] | None = None,
    ) -> Proposal:
        """Add a proposal: the baseline with changed settings, a different command, or a different
        git revision.

        Args:
            settings: changed settings.
            command: new command line.
            revision: new commit.
            note: description of the change.
            defaults: default settings of the program; proposing a default value is not a change.
            files: SHA-256 of the program's files, if it does not run in a checkout.

        Raises:
            ConfigError: a re-check is open, the campaign has ended, the proposal equals the
                baseline, or files of the baseline have changed.
        """
        self._refuse_while_rechecked()
        self._refuse_after_end()
        base = self.baseline
        check_files(base.files, self.folder)
        arm = Arm({**base.settings, **settings}, base.command, revision or base.revision)
        if command:
            arm.command = list(command)
        described = bool(note) and self.spec.space is None
        own = defaults or {}
        resolved = {**own, **arm.settings}, arm.command, arm.revision
        if resolved == ({**own, **base.settings}, base.command, base.revision) and not described:
            raise ConfigError(
                "the proposal equals the baseline",
                str(self.folder),
                "change a setting (KEY=VALUE), --command or --revision; if something else "
                "changed, describe it with --note and record the scores yourself",
                code="proposal-equal",
            )
        if self.baseline_is_old:
            self._add({"event": "again"})
        self._add(
            {
                "event": "proposal",
                "number": len(self.proposals) + 1,
                "settings": arm.settings,
                "command": arm.command,
                "revision": arm.revision,
                "note": note,
                "files": {**base.files, **(files or {})},
                "protected": self._protected_changes(arm),
            }
        )
        return self.proposals[-1]

    def recheck(self) -> Recheck:
        """Start a re-check: run the current and the first baseline on fresh seeds, and compare
        them.

        Raises:
            ConfigError: a proposal or a re-check is open, or no proposal was kept since the last
                re-check.
        """
        self._refuse_while_open()
        if not self.unconfirmed:
            raise ConfigError(
                "no proposal was kept since the last re-check",
                str(self.folder),
                "continue with proposals: a test that is repeated until it succeeds is not "
                "evidence",
                code="nothing-to-recheck",
            )
        first_seed = (len(self.baselines) - 1) * SEEDS_OF_A_BASELINE + SEEDS_APART
        self._add({"event": "recheck", "first_seed": first_seed})
        return self.rechecks[-1]

    def command(self, verb: str, *words: str) -> str:
        """Return a command for this campaign, quoted for a shell."""
        return command_line("sweep", "gate", verb, str(self.folder), *words)

    def _protected_changes(self, arm: Arm) -> list[str]:
        """Return the protected files that the revision of a configuration changes."""
        if self.protected is None or arm.revision is None:
            return []
        return git.changed_between(self.protected.revision, arm.revision, self.protected.paths)

    def _refuse_while_open(self) -> None:
        """Raise ConfigError if a proposal or a re-check is undecided."""
        self._refuse_while_rechecked()
        if self.open is not None:
            raise ConfigError(
                f"proposal {self.open.number} is undecided",
                str(self.folder),
                f"`{self.command('status')}` prints what it needs; "
                f"`{self.command('withdraw')}` withdraws it",
                code="proposal-open",
            )

    def _refuse_while_rechecked(self) -> None:
        if self.open_recheck is not None:
            raise ConfigError(
                "the re-check of the chain is undecided",
                str(self.folder),
                f"`{self.command('status')}` prints the runs that it needs",
                code="recheck-open",
            )

    def _refuse_after_end(self) -> None:
        """Raise ConfigError if a limit of the campaign does not allow another proposal."""
        reason = spent(self, self.spec, time.time())
        if not reason and are_all_made(self, self.spec):
            most = self.spec.max_proposals
            reason = f"{len(self.proposals)} of --max-proposals {most} proposals were made"
        if reason:
            raise ConfigError(
                f"the campaign has ended: {reason}",
                str(self.folder / "campaign.yaml"),
                f"`{self.command('status')}` shows the kept proposals. Limits cannot be "
                "changed after the start; for another campaign, use another folder",
                code="campaign-ended",
            )

    def _recorded(self, arm: str, seed: int, number: int | None) -> Arm:
        """Return the configuration for which a run of an arm on a seed is recorded.

        Raises:
            ConfigError: no such configuration runs at present, or several proposals are open and
                ``number`` is None.
        """
        arms = [FIRST, BASELINE] if self.open_recheck is not None else [BASELINE, PROPOSAL]
        if arm not in (BASELINE, PROPOSAL, FIRST):
            raise ConfigError(
                f"unknown arm: {arm}", "command line", f"write {' or '.join(arms)}", code="no-arm"
            )
        undecided = [proposal.number for proposal in self.open_proposals]
        must_name = arm == PROPOSAL and (number is not None or len(undecided) > 1)
        if must_name and number not in undecided:
            what = (
                "several proposals are open" if number is None else f"proposal {number} is not open"
            )
            raise ConfigError(
                what,
                "command line",
                f"add --proposal N; open: {', '.join(map(str, undecided)) or 'none'}",
                code="which-proposal",
            )
        target = self.target(arm, seed, number)
        if target is None and arm == FIRST:
            raise ConfigError(
                "no re-check is open",
                str(self.folder),
                f"run `{self.command('recheck')}` first",
                code="no-open-recheck",
            )
        if target is None:
            raise ConfigError(
                "no proposal is open",
                str(self.folder),
                f"run `{self.command('propose')} KEY=VALUE` first",
                code="no-open-proposal",
            )
        return target

    def record(
        self,
        arm: str,
        seed: int,
        score: float | None,
        reason: str = "",
        *,
        proposal: int | None = None,
        guards: Mapping[str, float] | None = None,
    ) -> None:
        """Record the score of one run; None for a run that failed.

        Args:
            arm: name of the configuration that ran.
            seed: seed of the run.
            score: score of the run.
            reason: why the run failed.
            proposal: number of the proposal that ran; None: the only open one.
            guards: metric of a guard -> value in this run, for all guards.

        Raises:
            ConfigError: the campaign does not need this run or has already recorded it, or the
                value of a guard is missing.
        """
        target = self._recorded(arm, seed, proposal)
        guards = guards or {}
        if score is not None:
            self._check_guards(guards)
            score, reason = _usable(score, guards, reason)
        if seed in target.scores or seed in target.failed:
            raise ConfigError(
                f"seed {seed} of the {arm} already has a result",
                str(self.folder / "events.jsonl"),
                f"results are final: run a seed that `{self.command('status')}` lists",
                code="result-twice",
            )
        if seed not in self._needed_seeds(arm, proposal):
            raise ConfigError(
                f"the {arm} does not need seed {seed} now",
                str(self.folder),
                f"run `{self.command('status')}` for the required seeds: extra seeds would raise "
                "the false keep rate",
                code="seed-not-asked",
            )
        event: Record = {
            "event": "result",
            "arm": arm,
            "seed": seed,
            "score": score,
            "reason": reason,
        }
        if guards and score is not None:
            event["guards"] = dict(guards)
        if isinstance(target, Proposal):
            event["number"] = target.number
        self._add(event)

    def record_batch(self, finished: Sequence[Finished]) -> None:
        """Record the results of runs that ended together in a single event, so that all of them are
        recorded or none.

        Seeds that are not needed any more are skipped: they have a result, or the proposal was
        withdrawn or decided while they ran.

        Raises:
            ConfigError: the baseline failed on too many seeds, or no configuration's scores vary.
        """
        parts = []
        for arm in finished:
            needed = self._needed_seeds(arm.arm, arm.proposal)
            results: list[tuple[int, float | None, str]] = []
            guards: dict[str, list[tuple[int, float]]] = {}
            for seed, score in arm.scores.items():
                if seed not in needed:
                    continue
                values = {metric: arm.guards[metric][seed] for metric in arm.guards}
                usable, reason = _usable(score, values, "")
                results.append((seed, usable, reason))
                if usable is not None:
                    for metric, value in values.items():
                        guards.setdefault(metric, []).append((seed, value))
            failed = arm.failed.items()
            results += [(seed, None, reason) for seed, reason in failed if seed in needed]
            if results:
                part = {"arm": arm.arm, "number": arm.proposal, "results": results}
                parts.append({**part, "guards": guards} if guards else part)
        if parts:
            self._add({"event": "batch", "parts": parts})

    def _check_guards(self, guards: Mapping[str, float]) -> None:
        """Check that a run has a value for every guard of the campaign, and no others.

        Raises:
            ConfigError: a value is missing, or a metric is not a guard.
        """
        asked = [guard.metric for guard in self.spec.guard_specs()]
        unknown = [metric for metric in guards if metric not in asked]
        if unknown:
            raise ConfigError(
                f"{unknown[0]} is not a guard of the campaign",
                "--guard",
                nearest(unknown[0], asked) if asked else "omit --guard: the campaign has no guards",
                code="no-guard",
            )
        missing = [metric for metric in asked if metric not in guards]
        if missing:
            raise ConfigError(
                f"the run has no value for the guard {missing[0]}",
                "--guard",
                "add " + " ".join(f"--guard {metric}=VALUE" for metric in asked),
                code="guard-missing",
            )

    def withdraw(self, number: int | None = None) -> Proposal:
        """Withdraw an open proposal, by default the latest one. It is treated as discarded.

        Raises:
            ConfigError: no such proposal is open.
        """
        proposals = [each for each in self.open_proposals if number in (None, each.number)]
        if not proposals:
            raise ConfigError(
                "no proposal is open" if number is None else f"proposal {number} is not open",
                str(self.folder),
                f"`{self.command('status')}` lists the proposals",
                code="no-open-proposal",
            )
        proposal = proposals[-1]
        self._decide(GateVerdict(outcome="discard", proposal=proposal.number, reason="withdrawn"))
        return proposal

    def verdict(self, number: int | None = None) -> GateVerdict:
        """Return the verdict from the runs so far, or that the campaign has ended. No decision is
        recorded.

        Args:
            number: number of a proposal; if it is decided, its recorded decision is returned. None:
                the open re-check or proposal; if several proposals are open, the verdict lists
                every run that any of them needs.
        """
        return within_limits(self._verdict(number), self, self.spec, time.time())

    def recheck_verdict(self, number: int) -> GateVerdict:
        """Return the recorded decision of a re-check, or its verdict from the runs so far.

        Args:
            number: number of the re-check, counted from 1.
        """
        decision = self.rechecks[number - 1].decision
        return self.verdict() if decision is None else recorded_verdict(decision)

    def _verdict(self, number: int | None = None) -> GateVerdict:
        if number is not None:
            proposal = self.proposals[number - 1]
            if proposal.decision is not None:
                return recorded_verdict(proposal.decision)
            return self._of_proposal(proposal)
        if self.open_recheck is not None:
            return self._judge.of_recheck(self.open_recheck)
        verdicts = [self._of_proposal(proposal) for proposal in self.open_proposals]
        if not verdicts:
            return self._judge.of_baseline()
        if len(verdicts) == 1:
            return verdicts[0]
        needs = [need for verdict in verdicts for need in verdict.needs]
        return GateVerdict(
            outcome="more",
            reason=f"{len(verdicts)} proposals are open",
            needs=tuple(dict.fromkeys(needs)),
        )

    def _of_proposal(self, proposal: Proposal) -> GateVerdict:
        """Return the verdict on a proposal. Events that must precede the verdict, such as the start
        of a repeated baseline, are applied first. These events follow from the runs, so a campaign
        that is only read applies them without recording them.
        """
        while True:
            judged = self._judge.of_proposal(proposal)
            if isinstance(judged, GateVerdict):
                return judged
            if self._writer is None:
                self.apply(judged)
            else:
                self._add(judged)

    def decide(self) -> GateVerdict:
        """Return `verdict` and record it: a decision, or the number of seeds at the next analysis.
        If several proposals are open, decide every one that can be decided, and return the last
        decision.
        """
        if self.open_recheck is not None or not self.open_proposals:
            verdict = self._verdict()
            self._record_verdict(verdict)
            return within_limits(verdict, self, self.spec, time.time())
        decided = None
        may_change = True
        while may_change:  # keeping a proposal may decide earlier ones
            may_change = False
            for proposal in self.open_proposals:
                verdict = self._of_proposal(proposal)
                self._record_verdict(verdict)
                if verdict.outcome != "more":
                    decided = verdict
                    may_change = True
        return decided or self.verdict()

    def _record_verdict(self, verdict: GateVerdict) -> None:
        if verdict.outcome in ("keep", "discard"):
            self._decide(verdict)
        elif verdict.outcome in ("confirmed", "unconfirmed"):
            self._add(
                {
                    "event": "rechecked",
                    "outcome": verdict.outcome,
                    "reason": verdict.reason,
                    **numbers(verdict.answer),
                }
            )
        elif verdict.answer is not None and verdict.answer.next_seeds is not None:
            asked = verdict.answer.next_seeds
            self._add({"event": "asked", "number": verdict.proposal, "seeds": asked})

    def model(self) -> SeedModel | None:
        """Return the model of seed variation, estimated from all runs of the campaign."""
        return self._judge.model()

    def _needed_seeds(self, arm: str, number: int | None) -> set[int]:
        needed: set[int] = set()
        for need in self._verdict().needs:
            if need.arm == arm and (number is None or need.proposal in (None, number)):
                needed.update(need.seeds)
        return needed

    def _decide(self, verdict: GateVerdict) -> None:
        self._add(
            {
                "event": "decision",
                "number": verdict.proposal,
                "outcome": verdict.outcome,
                "reason": verdict.reason,
                **numbers(verdict.answer),
            }
        )

    def _add(self, event: Record) -> None:
        assert self._writer is not None, "the campaign is not locked: use change()"
        self._writer.append(with_checksum(event))
        self.apply(event)

    def _check_program(self, digest: str | None) -> None:
        """Check that the program has not changed since the campaign started.

        Raises:
            ConfigError: the search space of the program was edited.
        """
        path = self.folder / PROGRAM
        if digest is None or (path.is_file() and _digest(path.read_bytes()) == digest):
            return
        raise ConfigError(
            "the campaign's program has been edited since the campaign started",
            str(path),
            "restore the file from a backup. For another program, start a campaign in another "
            "folder",
            code="program-edited",
        )

    def _check_spec(self, started: Record | None) -> None:
        """Check that the settings have not changed since the campaign started.

        Raises:
            ConfigError: ``campaign.yaml`` was edited.
        """
        now = self.spec.model_dump(mode="json")
        for key, before in (started or {}).items():
            if now.get(key) != before:
                raise ConfigError(
                    f"{key} of the campaign is {now.get(key)!r}, but it was started with "
                    f"{before!r}",
                    str(self.folder / "campaign.yaml"),
                    f"restore {before!r}: the bound on false keeps is valid only for settings "
                    "chosen before the results. For other settings, start a campaign in "
                    "another folder",
                    key=key,
                    code="campaign-edited",
                )


def _usable(score: float, guards: Mapping[str, float], reason: str) -> tuple[float | None, str]:
    """Return the score of a run and the reason why the run failed. The score is None if the score
    itself or the value of a guard is not finite.
    """
    if not math.isfinite(score):
        return None, reason or f"its score is {score}"
    for metric, value in guards.items():
        if not math.isfinite(value):
            return None, reason or f"its {metric} is {value}"
    return score, reason


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def start_campaign(
    folder: Path,
    spec: CampaignSpec,
    *,
    program: str | None = None,
    revision: str | None = None,
    files: Mapping[str, str] | None = None,
    secret: str | None = None,
    earlier: Sequence[Earlier] = (),
) -> Campaign:
    """Start a campaign in a new or empty folder.

    Args:
        folder: folder of the campaign.
        spec: settings of the campaign.
        program: the resolved search space of the program; None: scores are recorded by hand.
        revision: commit that the baseline runs; None: the program does not run in a checkout.
        files: SHA-256 of the program's files, if it does not run in a checkout.
        secret: text from which the seeds of the runs are derived; None: seeds are counted from 0.
        earlier: campaigns of the same program, whose error budget is continued.

    Raises:
        ConfigError: the folder already contains a campaign, or other files.
        StorageError: the folder cannot be written.
    """
    _check_new(folder)
    event = _first_event(
        spec, program, revision=revision, files=files or {}, secret=secret, earlier=earlier
    )
    try:
        _write_campaign(folder, spec, program, event)
    except OSError as error:
        raise storage_error("start the campaign", folder, error) from error
    return Campaign.read(folder)


def _check_new(folder: Path) -> None:
    """Raise ConfigError if the folder contains a campaign, or other files."""
    if (folder / "campaign.yaml").exists():
        raise ConfigError(
            f"{folder} already contains a campaign",
            str(folder / "campaign.yaml"),
            f"`{command_line('sweep', 'gate', 'status', str(folder))}` continues it; for "
            "another campaign, use another folder",
            code="campaign-exists",
        )
    if folder.is_dir() and not _is_free(folder):
        raise ConfigError(
            f"{folder} is not empty", str(folder), "choose a new folder", code="folder-not-empty"
        )


def _first_event(
    spec: CampaignSpec,
    program: str | None,
    *,
    revision: str | None,
    files: Mapping[str, str],
    secret: str | None,
    earlier: Sequence[Earlier],
) -> Record:
    """Return the event of the first baseline, which also records the settings of the campaign. For
    the arguments, see `start_campaign`.
    """
    event = {
        "event": "baseline",
        "time": time.time(),
        "settings": spec.settings,
        "command": None,
        "revision": revision,
        "files": dict(files),
        "campaign": spec.model_dump(mode="json"),
        "protected": {path: git.content_hash(revision or "HEAD", path) for path in spec.protect},
    }
    if secret is not None:
        event["secret"] = secret
    if earlier:
        event["earlier"] = as_records(earlier)
    if program is not None:
        # as `write_atomically` writes it
        event["program"] = _digest(program.encode("utf-8", "backslashreplace"))
    return event


def _write_campaign(folder: Path, spec: CampaignSpec, program: str | None, event: Record) -> None:
    """Write the files of a new campaign. They are moved into the folder when all are complete, so
    an interrupted start can be repeated.

    Raises:
        OSError: the folder cannot be written.
    """
    making = folder / _MAKING
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    # protects the campaign from `git add -A` and `git clean -fd` in a surrounding repository
    write_atomically(making / ".gitignore", "*\n")
    if program is not None:
        write_atomically(making / PROGRAM, program)
    JsonLines(making / "events.jsonl").append(with_checksum(event))
    write_atomically(making / "campaign.yaml", dump_yaml(spec.model_dump(mode="json")))
    for name in _FILES:
        if (making / name).exists():
            (making / name).replace(folder / name)
    making.rmdir()


def _is_free(folder: Path) -> bool:
    """Return whether a folder is empty, or contains only files of an interrupted start."""
    names = {path.name for path in folder.iterdir()}
    return not names or (_MAKING in names and names <= {_MAKING, *_FILES})
