"""A campaign: a baseline, and proposals that are kept or discarded sequentially.

A campaign is a folder:

    campaign.yaml   the settings: program, objective, worthwhile gain, false-keep rate, seeds
    events.jsonl    baselines, proposals, scores, decisions and re-checks, in order, each with a
                    checksum
    runs/           the sweeps that ran the trainings, if loptune ran them

Everything else follows from these events. A proposal that is kept becomes the next baseline, on
fresh seeds: its own scores were chosen for being good.
"""

import hashlib
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from dashboards.statistics import gate
from dashboards.statistics.online_levels import lord_level
from loptune.errors import ConfigError, MissingError
from loptune.files import JsonLines, Record, storage_error, write_atomically
from loptune.run_names import command_line, lock_folder
from loptune.section import Positive, Section
from loptune.yaml_document import dump_yaml, read_yaml, validate
from sweep.gate.arm import BASELINE, FIRST, PROPOSAL, Arm, ArmName
from sweep.gate.program_files import check_files
from sweep.gate.recheck import DUE_AFTER, SEEDS_APART, Recheck
from sweep.search.event_log import read_checked, with_checksum

PROGRAM = "program.yaml"  # the search space whose program runs, resolved, in a campaign's folder
# in which order they appear: a folder without campaign.yaml is no campaign
_FILES = (".gitignore", PROGRAM, "events.jsonl", "campaign.yaml")
_MAKING = ".making"  # contains them until they are complete
_FRESH = 1000  # distance of the seeds of successive baselines
_DAMAGED = "restore it from a backup, or start a campaign in another folder"


class CampaignSpec(Section):
    """The settings of a campaign, ``campaign.yaml``."""

    space: str | None = None
    """search space whose program runs; null: scores are recorded by hand"""
    settings: dict[str, Any] = Field({})
    """settings of the first baseline"""
    metric: str = "eval/accuracy"
    """what the scores are"""
    mode: Literal["max", "min"] = "max"
    """whether larger or smaller is better"""
    worthwhile: Positive
    """smallest gain that matters"""
    false_keeps: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """bound on the expected fraction of kept proposals that are not improvements"""
    first_seeds: Annotated[int, Field(ge=gate.OWN_VARIATION)] = 8
    """runs of every new baseline"""
    most_seeds: Annotated[int, Field(ge=gate.FIRST_CLAIM, le=SEEDS_APART)] = 32
    """largest number of runs of one proposal"""


@dataclass
class Proposal(Arm):
    """A proposed change."""

    number: int = 0  # from 1
    baseline: int = 0  # index of the baseline that it is compared with
    asked: int = 1  # seeds at the next interim analysis
    decision: dict[str, Any] | None = None  # the event
    given_up: bool = False  # kept, but its chain was not confirmed

    @property
    def kept(self) -> bool:
        """Whether the proposal was kept and no later re-check discarded it."""
        if self.decision is None or self.given_up:
            return False
        return bool(self.decision["outcome"] == "keep")


@dataclass(frozen=True, kw_only=True)
class Need:
    """Runs that are needed before the next decision."""

    arm: ArmName
    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GateVerdict:
    """The campaign's status for its latest proposal, or for its baseline if none is open."""

    outcome: Literal["keep", "discard", "more", "ready", "confirmed", "unconfirmed"]
    proposal: int | None = None
    reason: str = ""
    answer: gate.Answer | None = None
    needs: tuple[Need, ...] = ()


class Campaign:
    """The state of a campaign, read from its folder. `change` is the only way to add to it."""

    def __init__(self, folder: Path) -> None:
        """Read the campaign.

        Raises:
            MissingError: the folder contains no campaign.
            ConfigError: ``campaign.yaml`` is wrong or was edited.
            StorageError: ``events.jsonl`` was damaged or edited.
        """
        self.folder = folder
        path = folder / "campaign.yaml"
        if not path.is_file():
            raise MissingError(
                f"no campaign in {folder}",
                str(path),
                f"`{self.command('start', '--worthwhile', '0.01')}` starts one",
                code="no-campaign",
            )
        self.spec = validate(CampaignSpec, read_yaml(path))
        self.baselines: list[Arm] = []
        self.proposals: list[Proposal] = []
        self.rechecks: list[Recheck] = []
        self._program: str | None = None  # SHA-256 of the program's space
        self._confirmed = 0  # index of the last baseline that was confirmed
        self._writer: JsonLines | None = None
        path = folder / "events.jsonl"
        for _, event in read_checked(path, advice=_DAMAGED, code="campaign-checksum"):
            self._apply(event)
        self._check_program()

    @property
    def baseline(self) -> Arm:
        """The configuration to beat."""
        return self.baselines[-1]

    @property
    def open(self) -> Proposal | None:
        """The proposal that is neither kept nor discarded."""
        if self.proposals and self.proposals[-1].decision is None:
            return self.proposals[-1]
        return None

    @property
    def kept(self) -> list[int]:
        """The numbers of the kept proposals, except the ones that a re-check discarded."""
        return [proposal.number for proposal in self.proposals if proposal.kept]

    @property
    def unconfirmed(self) -> list[int]:
        """The numbers of the proposals that were kept since the last re-check."""
        later = [each for each in self.proposals if each.baseline >= self._confirmed]
        return [proposal.number for proposal in later if proposal.kept]

    @property
    def recheck_due(self) -> bool:
        """Whether enough was kept since the last re-check."""
        return self.open_recheck is None and len(self.unconfirmed) >= DUE_AFTER

    @property
    def open_recheck(self) -> Recheck | None:
        """The re-check that is not decided."""
        if self.rechecks and self.rechecks[-1].decision is None:
            return self.rechecks[-1]
        return None

    @contextmanager
    def change(self) -> Iterator["Campaign"]:
        """Lock the campaign for this process and yield its current state.

        Raises:
            NameInUseError: another process has the lock.
        """
        with lock_folder(self.folder, "campaign"):
            current = Campaign(self.folder)
            current._writer = JsonLines(self.folder / "events.jsonl")
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
        """Add a proposal: the baseline with changed settings, another command, or another git
        revision.

        Args:
            settings: changed settings.
            command: another command line.
            revision: another commit.
            note: what was changed, in words.
            defaults: the program's own settings, with which ``settings`` may agree.
            files: SHA-256 of the files that it runs in place.

        Raises:
            ConfigError: an earlier proposal is undecided, it is equal to the baseline, or the
                files of the baseline have changed.
        """
        self._refuse_while_open()
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
                "the proposal is equal to the baseline",
                str(self.folder),
                "change a setting (KEY=VALUE), --command or --revision; "
                "if something else changed, say what with --note and record the scores",
                code="proposal-equal",
            )
        self._add(
            {
                "event": "proposal",
                "number": len(self.proposals) + 1,
                "settings": arm.settings,
                "command": arm.command,
                "revision": arm.revision,
                "note": note,
                "files": {**base.files, **(files or {})},
            }
        )
        return self.proposals[-1]

    def recheck(self) -> Recheck:
        """Start a re-check: compare the current baseline with the first one on fresh seeds of both.

        Raises:
            ConfigError: a proposal or a re-check is open, or nothing was kept since the last one.
        """
        self._refuse_while_open()
        if not self.unconfirmed:
            raise ConfigError(
                "nothing was kept since the last re-check",
                str(self.folder),
                "continue with proposals: repeating a test until it succeeds confirms nothing",
                code="nothing-to-recheck",
            )
        self._add({"event": "recheck", "first_seed": self._first_seed() + SEEDS_APART})
        return self.rechecks[-1]

    def command(self, verb: str, *words: str) -> str:
        """Return a command for this campaign, quoted for a shell."""
        return command_line("sweep", "gate", verb, str(self.folder), *words)

    def _refuse_while_open(self) -> None:
        """Refuse a new question before the last one is answered."""
        if self.open is not None:
            raise ConfigError(
                f"proposal {self.open.number} is not decided yet",
                str(self.folder),
                f"`{self.command('status')}` prints what it needs; "
                f"`{self.command('withdraw')}` withdraws it",
                code="proposal-open",
            )
        if self.open_recheck is not None:
            raise ConfigError(
                "the re-check of the chain is not decided yet",
                str(self.folder),
                f"`{self.command('status')}` prints what it needs",
                code="recheck-open",
            )

    def _target(self, arm: str) -> Arm | None:
        """Return the configuration whose scores are recorded under the name of an arm.

        Raises:
            ConfigError: there is no such arm.
        """
        arms: dict[str, Arm | None] = {BASELINE: self.baseline, PROPOSAL: self.open}
        if self.open_recheck is not None:
            arms = {BASELINE: self.open_recheck.latest, FIRST: self.open_recheck.first}
        if arm not in (BASELINE, PROPOSAL, FIRST):
            raise ConfigError(
                f"no arm {arm}", "command line", f"write {' or '.join(arms)}", code="no-arm"
            )
        return arms.get(arm)

    def record(self, arm: str, seed: int, score: float | None, reason: str = "") -> None:
        """Record the score of one run; None for a run that failed.

        Raises:
            ConfigError: there is no such run to record, or it is there already.
        """
        target = self._target(arm)
        if target is None and arm == FIRST:
            raise ConfigError(
                "no re-check is open",
                str(self.folder),
                f"`{self.command('recheck')}` first",
                code="no-open-recheck",
            )
        if target is None:
            raise ConfigError(
                "no proposal is open",
                str(self.folder),
                f"`{self.command('propose')} KEY=VALUE` first",
                code="no-open-proposal",
            )
        if score is not None and not math.isfinite(score):
            score, reason = None, reason or f"its score is {score}"
        if seed in target.scores or seed in target.failed:
            raise ConfigError(
                f"the {arm}'s seed {seed} has a result already",
                str(self.folder / "events.jsonl"),
                f"a result is final: use a seed that `{self.command('status')}` asks for",
                code="result-twice",
            )
        if seed not in self._allowed_seeds(arm):
            raise ConfigError(
                f"the {arm} does not need seed {seed} now",
                str(self.folder),
                f"`{self.command('status')}` prints the seeds that it needs: more seeds "
                "than asked for would make it easier to be lucky",
                code="seed-not-asked",
            )
        self._add({"event": "result", "arm": arm, "seed": seed, "score": score, "reason": reason})

    def record_batch(
        self, arm: str, *, scores: Mapping[int, float], failed: Mapping[int, str]
    ) -> None:
        """Record the results of runs that ended together, in one event: all of them or none.

        Seeds that have a result already are left out, so recording a batch again changes nothing.

        Raises:
            ConfigError: there is no such arm.
        """
        target = self._target(arm)
        assert target is not None, f"{arm} has no configuration to record runs for"
        ended = {**target.scores, **target.failed}
        new: list[tuple[int, float | None, str]] = []
        for seed, score in scores.items():
            if seed in ended:
                continue
            if math.isfinite(score):
                new.append((seed, score, ""))
            else:
                new.append((seed, None, f"its score is {score}"))
        new += [(seed, None, reason) for seed, reason in failed.items() if seed not in ended]
        if new:
            self._add({"event": "results", "arm": arm, "results": new})

    def withdraw(self) -> Proposal:
        """Give up the open proposal. It counts as discarded.

        Raises:
            ConfigError: no proposal is open.
        """
        if self.open is None:
            raise ConfigError(
                "no proposal is open",
                str(self.folder),
                "there is nothing to withdraw or to run",
                code="no-open-proposal",
            )
        proposal = self.open
        self._decide("discard", "withdrawn", None)
        return proposal

    def verdict(self) -> GateVerdict:
        """Return the answer of the runs so far; decides nothing."""
        if self.open_recheck is not None:
            return self._recheck_verdict(self.open_recheck)
        missing = self._missing_baseline()
        if self.open is None:
            if missing:
                return GateVerdict(
                    outcome="more",
                    reason="measure the baseline first",
                    needs=(Need(arm=BASELINE, seeds=missing),),
                )
            self._check_noise()
            return GateVerdict(outcome="ready", reason="propose a change")
        number = self.open.number
        if self.open.failed:
            seed, reason = next(iter(self.open.failed.items()))
            return GateVerdict(
                outcome="discard",
                proposal=number,
                reason=f"seed {seed} failed: {reason or 'no reason given'}",
            )
        needs = [Need(arm=BASELINE, seeds=missing)] if missing else []
        # An analysis counts once: more of them, or one with later runs, would make more false
        # keeps.
        scores = self._compared(self.open)
        if len(scores) < self.open.asked:
            return self._more(number, needs, self._fresh_seeds(self.open.asked), None)
        if missing or self.baseline.missing(scores):
            return self._more(number, needs, tuple(scores), None)
        self._check_noise()
        answer = self._answer()
        if answer.outcome == "keep" and len(set(scores.values())) == 1:
            return GateVerdict(
                outcome="discard",
                proposal=number,
                reason=f"all its {len(scores)} seeds score the same, {scores[min(scores)]:g}, so "
                "the seed does not reach the program and the scores show no gain",
                answer=answer,
            )
        if answer.outcome == "more":
            return self._more(number, [], self._fresh_seeds(answer.next_seeds), answer)
        return GateVerdict(
            outcome=answer.outcome,
            proposal=number,
            reason=_reason(answer, self.spec),
            answer=answer,
        )

    def decide(self) -> GateVerdict:
        """Return `verdict` and record it: a decision, or how many seeds come before the next."""
        verdict = self.verdict()
        if verdict.outcome in ("keep", "discard"):
            self._decide(verdict.outcome, verdict.reason, verdict.answer)
        elif verdict.outcome in ("confirmed", "unconfirmed"):
            self._add(
                {
                    "event": "rechecked",
                    "outcome": verdict.outcome,
                    "reason": verdict.reason,
                    **_numbers(verdict.answer),
                }
            )
        elif verdict.answer is not None:
            asked = verdict.answer.next_seeds
            self._add({"event": "asked", "number": verdict.proposal, "seeds": asked})
        return verdict

    def model(self) -> gate.SeedModel | None:
        """Return how scores vary between seeds, from all runs of the campaign."""
        arms = [*self.baselines, *self.proposals]
        pairs: list[tuple[Arm, Arm]] = []  # compared on the same seeds
        for proposal in self.proposals:
            pairs.append((proposal, self.baselines[proposal.baseline]))
        for recheck in self.rechecks:
            arms += [recheck.latest, recheck.first]
            pairs.append((recheck.latest, recheck.first))
        return gate.seed_model(
            [self._gains(arm) for arm in arms if arm.scores],
            [(self._gains(one), self._gains(other)) for one, other in pairs],
        )

    def _recheck_verdict(self, recheck: Recheck) -> GateVerdict:
        """Return the answer of the runs so far on the chain of kept changes."""
        if recheck.latest.failed:
            seed, reason = next(iter(recheck.latest.failed.items()))
            return GateVerdict(
                outcome="unconfirmed",
                reason=f"its seed {seed} failed: {reason or 'no reason given'}",
            )
        if len(recheck.first.failed) >= self.spec.first_seeds:
            raise self._fails(recheck.first)
        asked = recheck.usable_seeds(recheck.asked)
        needs = self._recheck_needs(recheck, asked)
        if needs:
            return GateVerdict(outcome="more", reason="the chain is checked", needs=needs)
        model = self.model()
        assert model is not None  # both have runs
        latest = self._gains(recheck.latest)
        answer = gate.answer(
            {seed: latest[seed] for seed in latest if seed in asked},
            self._gains(recheck.first),
            model=model,
            worthwhile=self.spec.worthwhile,
            level=self.spec.false_keeps,
            most_seeds=self.spec.most_seeds,
        )
        if answer.outcome == "more":
            needs = self._recheck_needs(recheck, recheck.usable_seeds(answer.next_seeds))
            return GateVerdict(
                outcome="more", reason="the runs so far do not decide", answer=answer, needs=needs
            )
        if answer.outcome == "keep":
            reason = "the baseline is better than the first one"
            return GateVerdict(outcome="confirmed", reason=reason, answer=answer)
        reason = f"{answer.seeds} seeds do not show that the baseline is better than the first one"
        return GateVerdict(outcome="unconfirmed", reason=reason, answer=answer)

    def _recheck_needs(self, recheck: Recheck, asked: tuple[int, ...]) -> tuple[Need, ...]:
        first = Need(arm=FIRST, seeds=recheck.first.missing(asked))
        latest = Need(arm=BASELINE, seeds=recheck.latest.missing(asked))
        return tuple(need for need in (first, latest) if need.seeds)

    def _gains(self, arm: Arm) -> gate.Runs:
        """Return the scores of an arm by seed, oriented so that larger is better."""
        return self._oriented(arm.scores)

    def _oriented(self, scores: Mapping[int, float]) -> gate.Runs:
        sign = 1.0 if self.spec.mode == "max" else -1.0
        return {seed: sign * score for seed, score in scores.items()}

    def _compared(self, proposal: Proposal) -> dict[int, float]:
        """Return the scores of a proposal on the seeds on which the baseline has not failed: there
        is nothing to compare the others with.
        """
        usable = self.baseline.not_failed(proposal.scores)
        return {seed: proposal.scores[seed] for seed in usable}

    def _answer(self) -> gate.Answer:
        assert self.open is not None
        model = self.model()
        assert model is not None  # the baseline has its first seeds
        return gate.answer(
            self._oriented(self._compared(self.open)),
            self._gains(self.baseline),
            model=model,
            worthwhile=self.spec.worthwhile,
            level=lord_level(self.kept, self.open.number, self.spec.false_keeps),
            most_seeds=self.spec.most_seeds,
        )

    def _more(
        self, number: int, needs: list[Need], asked: tuple[int, ...], answer: gate.Answer | None
    ) -> GateVerdict:
        """Return the requested runs that both arms still lack."""
        assert self.open is not None
        also_asked: set[int] = set()
        for need in needs:
            also_asked.update(need.seeds)
        baseline = [seed for seed in self.baseline.missing(asked) if seed not in also_asked]
        further = (
            Need(arm=BASELINE, seeds=tuple(baseline)),
            Need(arm=PROPOSAL, seeds=self.open.missing(asked)),
        )
        return GateVerdict(
            outcome="more",
            proposal=number,
            reason="the runs so far do not decide",
            answer=answer,
            needs=(*needs, *(need for need in further if need.seeds)),
        )

    def _first_seed(self) -> int:
        return (len(self.baselines) - 1) * _FRESH

    def _fresh_seeds(self, seeds: int) -> tuple[int, ...]:
        """Return the first seeds of this baseline, as many as a proposal needs.

        A seed on which the baseline failed is left out.
        """
        first = self._first_seed()
        return self.baseline.not_failed(range(first, first + _FRESH))[:seeds]

    def _allowed_seeds(self, arm: str) -> set[int]:
        allowed: set[int] = set()
        for need in self.verdict().needs:
            if need.arm == arm:
                allowed.update(need.seeds)
        return allowed

    def _missing_baseline(self) -> tuple[int, ...]:
        if len(self.baseline.failed) >= self.spec.first_seeds:
            raise self._fails(self.baseline)
        return self.baseline.missing(self._fresh_seeds(self.spec.first_seeds))

    def _fails(self, baseline: Arm) -> ConfigError:
        reason = next(reversed(baseline.failed.values()))
        return ConfigError(
            f"the baseline failed on {len(baseline.failed)} seeds",
            str(self.folder),
            f"fix the program ({reason or 'no reason was given'}), and start a campaign in "
            "another folder",
            code="baseline-fails",
        )

    def _check_noise(self) -> None:
        """Refuse a campaign whose scores do not vary.

        Raises:
            ConfigError: all scores of each configuration are equal.
        """
        scores = list(self.baseline.scores.values())
        arms = [*self.baselines, *self.proposals]
        varies = any(len(set(arm.scores.values())) > 1 for arm in arms)
        if len(scores) > 1 and not varies:
            raise ConfigError(
                f"all {len(scores)} runs of the baseline score {scores[0]:g}",
                str(self.folder / "events.jsonl"),
                "either the seed does not reach the program, or the metric is too coarse: "
                "`sweep noise SPACE` shows which",
                code="seed-without-effect",
            )

    def _decide(self, outcome: str, reason: str, answer: gate.Answer | None) -> None:
        assert self.open is not None
        self._add(
            {
                "event": "decision",
                "number": self.open.number,
                "outcome": outcome,
                "reason": reason,
                **_numbers(answer),
            }
        )

    def _add(self, event: Record) -> None:
        assert self._writer is not None, "hold the campaign with change() first"
        self._writer.append(with_checksum(event))
        self._apply(event)

    def _apply(self, event: Record) -> None:
        kind = event["event"]
        if kind == "baseline":
            self._check_spec(event.get("campaign"))
            self._program = event.get("program")
            first = Arm(event["settings"], event["command"], event["revision"])
            first.files = event.get("files", {})
            self.baselines.append(first)
        elif kind == "proposal":
            self.proposals.append(
                Proposal(
                    settings=event["settings"],
                    command=event["command"],
                    revision=event["revision"],
                    note=event["note"],
                    files=event.get("files", {}),
                    number=event["number"],
                    baseline=len(self.baselines) - 1,
                )
            )
        elif kind == "result":
            arm = self._target(event["arm"])
            assert arm is not None  # it was checked when it was recorded
            if event["score"] is None:
                arm.failed[event["seed"]] = event["reason"]
            else:
                arm.scores[event["seed"]] = event["score"]
        elif kind == "results":
            arm = self._target(event["arm"])
            assert arm is not None  # it was checked when it was recorded
            for seed, score, reason in event["results"]:
                if score is None:
                    arm.failed[seed] = reason
                else:
                    arm.scores[seed] = score
        elif kind == "asked":
            (self.open_recheck or self.proposals[-1]).asked = event["seeds"]
        elif kind == "decision":
            proposal = self.proposals[-1]
            proposal.decision = event
            if event["outcome"] == "keep":
                self.baselines.append(proposal.again())
        elif kind == "recheck":
            index = len(self.baselines) - 1
            self.rechecks.append(
                Recheck(
                    self.baselines[0].again(), self.baseline.again(), index, event["first_seed"]
                )
            )
        elif kind == "rechecked":
            self._close_recheck(event)

    def _check_program(self) -> None:
        """Refuse a campaign whose program is not the one that it was started with.

        Raises:
            ConfigError: its space was edited.
        """
        path = self.folder / PROGRAM
        if self._program is None or (path.is_file() and _digest(path) == self._program):
            return
        raise ConfigError(
            "the campaign's program was edited since the campaign was started",
            str(path),
            "restore the file from a backup. Another program needs a campaign in another folder",
            code="program-edited",
        )

    def _check_spec(self, started: Record | None) -> None:
        """Refuse settings that differ from the ones the campaign was started with.

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
                    f"write {before!r} again: a bound on false keeps holds for settings chosen "
                    "before the results. Other settings need a campaign in another folder",
                    key=key,
                    code="campaign-edited",
                )

    def _close_recheck(self, event: Record) -> None:
        """Mark a chain as confirmed, or return to the last confirmed baseline."""
        recheck = self.rechecks[-1]
        if event["outcome"] == "confirmed":
            recheck.decision = event
            self._confirmed = recheck.baseline
            return
        for number in self.unconfirmed:
            self.proposals[number - 1].given_up = True
        recheck.decision = event
        self.baselines.append(self.baselines[self._confirmed].again())
        self._confirmed = len(self.baselines) - 1


def _numbers(answer: gate.Answer | None) -> Record:
    """Return the fields of an answer that an event records."""
    if answer is None:
        return {}
    low = answer.low if math.isfinite(answer.low) else None  # JSON has no infinity
    return {
        "gain": answer.gain,
        "low": low,
        "high": answer.high,
        "level": answer.level,
        "seeds": answer.seeds,
    }


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def start_campaign(
    folder: Path,
    spec: CampaignSpec,
    *,
    program: str | None = None,
    revision: str | None = None,
    files: Mapping[str, str] | None = None,
) -> Campaign:
    """Start a campaign in a new or empty folder.

    Args:
        folder: of the campaign.
        spec: its settings.
        program: the resolved search space whose program runs; None: scores are recorded by hand.
        revision: commit that the baseline runs; None: the program runs in place.
        files: SHA-256 of the program's files, if it runs in place.

    Raises:
        ConfigError: the folder already contains a campaign, or other files.
        StorageError: the folder cannot be written.
    """
    if (folder / "campaign.yaml").exists():
        raise ConfigError(
            f"{folder} holds a campaign already",
            str(folder / "campaign.yaml"),
            f"`{command_line('sweep', 'gate', 'status', str(folder))}` continues it; another "
            "campaign needs another folder",
            code="campaign-exists",
        )
    if folder.is_dir() and not _is_free(folder):
        raise ConfigError(
            f"{folder} is not empty", str(folder), "name a new folder", code="folder-not-empty"
        )
    first = {
        "event": "baseline",
        "settings": spec.settings,
        "command": None,
        "revision": revision,
        "files": dict(files or {}),
        "campaign": spec.model_dump(mode="json"),
    }
    making = folder / _MAKING
    try:
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        # Neither `git add -A` nor `git clean -fd` of a repository around it touches a campaign.
        write_atomically(making / ".gitignore", "*\n")
        if program is not None:
            write_atomically(making / PROGRAM, program)
            first["program"] = _digest(making / PROGRAM)
        JsonLines(making / "events.jsonl").append(with_checksum(first))
        write_atomically(making / "campaign.yaml", dump_yaml(spec.model_dump(mode="json")))
        for name in _FILES:
            if (making / name).exists():
                (making / name).replace(folder / name)
        making.rmdir()
    except OSError as error:
        raise storage_error("start the campaign", folder, error) from error
    return Campaign(folder)


def _is_free(folder: Path) -> bool:
    """Return whether a folder is empty, or has only what a start left that was killed."""
    names = {path.name for path in folder.iterdir()}
    return not names or (_MAKING in names and names <= {_MAKING, *_FILES})


def _reason(answer: gate.Answer, spec: CampaignSpec) -> str:
    """Return why a proposal was kept or discarded."""
    if answer.outcome == "keep":
        return "its gain is above 0"
    if answer.high < 0:
        return "it is worse: its gain is below 0"
    if answer.high < spec.worthwhile:
        return f"its gain is below {spec.worthwhile:g}, the smallest worthwhile gain"
    return f"{answer.seeds} seeds show no gain; a worthwhile one would probably have been detected"
