"""The verdict on a proposal, a re-check or a baseline, from the runs so far."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dashboards.statistics import gate
from dashboards.statistics.campaign_noise import Runs, SeedModel, seed_model
from dashboards.statistics.checked_guards import CheckedGuard
from dashboards.statistics.difference import Difference
from dashboards.statistics.moved import moved
from dashboards.statistics.online_levels import lord_level
from dashboards.trial import sign_of
from loptune.errors import ConfigError, joined
from loptune.files import Record
from sweep.gate.arm import BASELINE, FIRST, PROPOSAL, Arm, ArmName
from sweep.gate.earlier import positions
from sweep.gate.proposal import Proposal, transferred
from sweep.gate.recheck import Recheck
from sweep.gate.seeds import SEEDS_OF_A_BASELINE
from sweep.gate.spec import CampaignSpec
from sweep.gate.state import State

if TYPE_CHECKING:
    from dashboards.sources.scores import GuardSpec


@dataclass(frozen=True, kw_only=True)
class Need:
    """Runs that the next decision requires."""

    arm: ArmName
    seeds: tuple[int, ...]
    proposal: int | None = None  # number of the proposal that runs; None for other arms


@dataclass(frozen=True, kw_only=True)
class GateVerdict:
    """The status of a proposal or a re-check, or of the baseline if neither is open."""

    outcome: Literal["keep", "discard", "more", "ready", "confirmed", "unconfirmed", "ended"]
    proposal: int | None = None
    reason: str = ""
    answer: gate.Answer | None = None
    needs: tuple[Need, ...] = ()


class Judge:
    """Judges the proposals and re-checks of a campaign without changing its state."""

    def __init__(self, state: State, spec: CampaignSpec, folder: Path) -> None:
        self._state = state
        self._spec = spec
        self._folder = folder

    def of_baseline(self) -> GateVerdict:
        """Return the status of the baseline: measured, or the runs that it needs.

        Raises:
            ConfigError: the baseline failed on at least ``first_seeds`` seeds, or no
                configuration's scores vary.
        """
        index = len(self._state.baselines) - 1
        missing = self._missing(index)
        if missing:
            return GateVerdict(
                outcome="more",
                reason="measure the baseline first",
                needs=(Need(arm=BASELINE, seeds=missing),),
            )
        self._check_noise(index)
        return GateVerdict(outcome="ready", reason="propose a change")

    def of_proposal(self, proposal: Proposal) -> GateVerdict | Record:
        """Return the verdict on an open proposal, or the event that must precede it.

        Raises:
            ConfigError: the baseline failed on at least ``first_seeds`` seeds, or no
                configuration's scores vary.
        """
        base = self._state.baselines[proposal.baseline]
        failed = _failed_alone(proposal, base)
        seeds = self._seeds_before_analysis(proposal, failed)
        if seeds:
            return self._more(proposal, seeds, None)
        if failed:
            return _discard(proposal, _first_failure(failed))
        self._check_noise(proposal.baseline)
        answer = self._answer(proposal)
        if answer.next_seeds is not None:
            return self._more(proposal, self._seeds(proposal.baseline, answer.next_seeds), answer)
        if answer.outcome == "keep":
            return self._before_keep(proposal, answer)
        return _discard(proposal, self._reason(answer), answer)

    def _seeds_before_analysis(
        self, proposal: Proposal, failed: Collection[int]
    ) -> tuple[int, ...]:
        """Return the seeds on which a proposal or its baseline must run before the next interim
        analysis; empty if the runs are complete. Each analysis is performed once: repeating it, or
        adding runs to it, would raise the false keep rate.

        Args:
            proposal: the proposal.
            failed: seeds on which only the proposal has failed so far.
        """
        base = self._state.baselines[proposal.baseline]
        if failed:  # the baseline may fail on these seeds, too
            return base.missing(failed)
        scores = self._shared(proposal)
        if len(scores) < proposal.asked:
            return self._seeds(proposal.baseline, proposal.asked)
        if self._missing(proposal.baseline) or base.missing(scores):
            return tuple(scores)
        return ()

    def _before_keep(self, proposal: Proposal, answer: gate.Answer) -> GateVerdict | Record:
        """Return the verdict on a proposal that has passed its test. The baseline runs again first,
        because the proposal was compared with older runs.
        """
        state = self._state
        scores = list(self._shared(proposal).values())
        if len(set(scores)) == 1:
            reason = (
                f"all its {len(scores)} seeds score the same, {scores[0]:g}, so the seed has no "
                "effect and the scores cannot show a gain"
            )
            return _discard(proposal, reason, answer)
        if proposal.beside == proposal.baseline:
            return self._keep(proposal, answer)
        if state.baseline.program != state.baselines[proposal.baseline].program:
            return self._beside_new_baseline(proposal, answer)
        if proposal.beside is None:
            return {"event": "again", "number": proposal.number}
        return self._beside_repetition(proposal, proposal.beside, answer)

    def _keep(self, proposal: Proposal, answer: gate.Answer) -> GateVerdict:
        return GateVerdict(
            outcome="keep", proposal=proposal.number, reason=self._reason(answer), answer=answer
        )

    def _beside_new_baseline(self, proposal: Proposal, answer: gate.Answer) -> GateVerdict | Record:
        """Return the event that compares a proposal with a baseline that was kept after it was
        made; discard the proposal if that baseline has the same change.
        """
        state = self._state
        arm = transferred(proposal, state.baselines[proposal.baseline], state.baseline)
        if arm.program == state.baseline.program:
            return _discard(proposal, "another kept proposal makes the same change", answer)
        return _compared(proposal, len(state.baselines) - 1, arm)

    def _beside_repetition(
        self, proposal: Proposal, index: int, answer: gate.Answer
    ) -> GateVerdict | Record:
        """Return the verdict after the baseline has run again, as baseline ``index``: keep the
        proposal unless the baseline's scores have drifted.
        """
        missing = self._missing(index)
        if missing:
            return GateVerdict(
                outcome="more",
                proposal=proposal.number,
                reason="the test is passed; the baseline runs again to check whether its "
                "scores have drifted",
                answer=answer,
                needs=(Need(arm=BASELINE, seeds=missing),),
            )
        base = self._state.baselines[proposal.baseline]
        again = self._state.baselines[index]
        metrics = [None, *(guard.metric for guard in self._guards)]
        if any(_has_moved(base.values(metric), again.values(metric)) for metric in metrics):
            return _compared(proposal, index, proposal)
        return self._keep(proposal, answer)

    def of_recheck(self, recheck: Recheck) -> GateVerdict:
        """Return the verdict on the chain of kept changes from the runs so far.

        Raises:
            ConfigError: the first baseline failed on at least ``first_seeds`` seeds.
        """
        first, latest = recheck.first, recheck.latest
        failed = _failed_alone(latest, first)
        unknown = first.missing(failed)
        if unknown:  # the first baseline may fail on these seeds, too
            return _more_of_recheck(recheck, unknown)
        if failed:
            reason = f"the current baseline's {_first_failure(failed)}"
            return GateVerdict(outcome="unconfirmed", reason=reason)
        if len(first.failed) >= self._spec.first_seeds:
            raise self._fails(first)
        asked = recheck.usable_seeds(recheck.asked)
        if first.missing(asked) or latest.missing(asked):
            return _more_of_recheck(recheck, asked)
        answer = self._recheck_answer(recheck, asked)
        if answer.next_seeds is not None:
            return _more_of_recheck(recheck, recheck.usable_seeds(answer.next_seeds), answer)
        return _decision_on_recheck(answer)

    def _recheck_answer(self, recheck: Recheck, seeds: Collection[int]) -> gate.Answer:
        """Return the test of the current baseline against the first one, on the given seeds."""
        model = self.model()
        assert model is not None  # both baselines have runs
        latest = self._gains(recheck.latest)
        return gate.answer(
            {seed: latest[seed] for seed in latest if seed in seeds},
            self._gains(recheck.first),
            model=model,
            worthwhile=self._spec.worthwhile,
            level=self._spec.false_keeps,
            most_seeds=self._spec.most_seeds,
            guards=self._guard_runs(recheck.latest, recheck.first, seeds),
        )

    def model(self, guard: "GuardSpec | None" = None) -> SeedModel | None:
        """Return the model of seed variation of the score, or of a guard, estimated from all runs
        of the campaign; None if no configuration has two scores.
        """
        baselines = self._state.baselines
        arms: list[Arm] = [*baselines, *self._state.proposals]
        pairs: list[tuple[Arm, Arm]] = []  # pairs of arms that ran on the same seeds
        for proposal in self._state.proposals:
            pairs.append((proposal, baselines[proposal.baseline]))
            for index, earlier in proposal.earlier:
                arms.append(earlier)
                pairs.append((earlier, baselines[index]))
        for recheck in self._state.rechecks:
            arms += [recheck.latest, recheck.first]
            pairs.append((recheck.latest, recheck.first))
        return seed_model(
            [self._gains(arm, guard) for arm in arms if arm.scores],
            [(self._gains(one, guard), self._gains(other, guard)) for one, other in pairs],
        )

    def _answer(self, proposal: Proposal) -> gate.Answer:
        model = self.model()
        assert model is not None  # the baseline has its first seeds
        # A keep raises the significance level of the proposals after it.
        made, kept = positions(self._state.started.get("earlier", []))
        kept += [made + each.decided_at for each in self._state.proposals if each.kept]
        number = made + proposal.number
        before = sorted(place for place in kept if place < number)
        base = self._state.baselines[proposal.baseline]
        shared = self._shared(proposal)
        return gate.answer(
            self._oriented(shared),
            self._gains(base),
            model=model,
            worthwhile=self._spec.worthwhile,
            level=lord_level(before, number, self._spec.false_keeps),
            most_seeds=self._spec.most_seeds,
            guards=self._guard_runs(proposal, base, shared),
        )

    @cached_property
    def _guards(self) -> "list[GuardSpec]":
        return self._spec.guard_specs()

    def _guard_runs(self, proposal: Arm, base: Arm, seeds: Collection[int]) -> list[gate.GuardRuns]:
        """Return the guards with their values in the runs of a proposal, on the given seeds, and of
        its baseline.
        """
        runs = []
        for guard in self._guards:
            model = self.model(guard)
            assert model is not None  # each run with a score has a value of every guard
            values = self._gains(proposal, guard)
            runs.append(
                gate.GuardRuns(
                    metric=guard.metric,
                    margin=guard.margin,
                    sign=sign_of(guard.mode),
                    proposal={seed: values[seed] for seed in values if seed in seeds},
                    baseline=self._gains(base, guard),
                    model=model,
                )
            )
        return runs

    def _gains(self, arm: Arm, guard: "GuardSpec | None" = None) -> Runs:
        """Return the scores of an arm by seed, or its values of a guard, oriented so that larger is
        better.
        """
        if guard is None:
            return self._oriented(arm.scores)
        sign = sign_of(guard.mode)
        return {seed: sign * value for seed, value in arm.values(guard.metric).items()}

    def _oriented(self, scores: Mapping[int, float]) -> Runs:
        sign = sign_of(self._spec.mode)
        return {seed: sign * score for seed, score in scores.items()}

    def _shared(self, proposal: Proposal) -> dict[int, float]:
        """Return the scores of a proposal on the seeds on which its baseline has not failed; the
        other scores cannot be compared.
        """
        usable = self._state.baselines[proposal.baseline].not_failed(proposal.scores)
        return {seed: proposal.scores[seed] for seed in usable}

    def _more(
        self, proposal: Proposal, asked: tuple[int, ...], answer: gate.Answer | None
    ) -> GateVerdict:
        """Return the missing runs of a proposal and its baseline on the requested seeds."""
        base = self._state.baselines[proposal.baseline]
        first = self._missing(proposal.baseline)
        rest = tuple(seed for seed in base.missing(asked) if seed not in first)
        needs = (
            Need(arm=BASELINE, seeds=first),
            Need(arm=BASELINE, seeds=rest),
            Need(arm=PROPOSAL, seeds=proposal.missing(asked), proposal=proposal.number),
        )
        return GateVerdict(
            outcome="more",
            proposal=proposal.number,
            reason="the runs so far are not conclusive",
            answer=answer,
            needs=tuple(need for need in needs if need.seeds),
        )

    def _seeds(self, index: int, count: int) -> tuple[int, ...]:
        """Return the first ``count`` seeds of a baseline on which it has not failed."""
        first = index * SEEDS_OF_A_BASELINE
        failed = self._state.baselines[index].failed
        numbers_of_runs = range(first, first + count + len(failed))
        seeds = map(self._state.seeds.of, numbers_of_runs)
        return self._state.baselines[index].not_failed(seeds)[:count]

    def _missing(self, index: int) -> tuple[int, ...]:
        """Return the seeds on which a baseline must still run before it can be used.

        Raises:
            ConfigError: the baseline failed on at least ``first_seeds`` seeds.
        """
        baseline = self._state.baselines[index]
        if len(baseline.failed) >= self._spec.first_seeds:
            raise self._fails(baseline)
        return baseline.missing(self._seeds(index, self._spec.first_seeds))

    def _fails(self, baseline: Arm) -> ConfigError:
        reason = next(reversed(baseline.failed.values()))
        return ConfigError(
            f"the baseline failed on {len(baseline.failed)} seeds",
            str(self._folder),
            f"fix the program ({reason or 'no error recorded'}), then start a new campaign in "
            "another folder",
            code="baseline-fails",
        )

    def _check_noise(self, index: int) -> None:
        """Raise ConfigError if all scores of each configuration are equal."""
        scores = list(self._state.baselines[index].scores.values())
        arms: list[Arm] = [*self._state.baselines, *self._state.proposals]
        varies = any(len(set(arm.scores.values())) > 1 for arm in arms)
        if len(scores) > 1 and not varies:
            raise ConfigError(
                f"all {len(scores)} runs of the baseline score {scores[0]:g}",
                str(self._folder / "events.jsonl"),
                "either the seed has no effect, or the metric is too coarse: run `sweep noise "
                "SPACE` to find out",
                code="seed-without-effect",
            )

    def _reason(self, answer: gate.Answer) -> str:
        """Return the reason why a proposal was kept or discarded."""
        shown = answer.difference
        if answer.guard_state == "fails":
            return _reason_of_guards(answer)
        if shown.outcome == "better" and answer.guard_state == "holds":
            return "its gain is above 0"
        if shown.outcome == "better":
            return _reason_of_guards(answer)
        if shown.outcome == "worse":
            return "it is worse: its gain is below 0"
        if shown.outcome == "not better":
            return f"its gain is below {self._spec.worthwhile:g}, the smallest worthwhile gain"
        return (
            f"the last planned analysis, with {shown.seeds} seeds, does not show that its gain is "
            "above 0"
        )


def _has_moved(before: Mapping[int, float], after: Mapping[int, float]) -> bool:
    return moved(list(before.values()), list(after.values())).has_moved


def _reason_of_guards(answer: gate.Answer) -> str:
    """Return which guards do not hold."""
    failed = [guard.metric for guard in answer.guards if guard.outcome == "fails"]
    if failed:
        return f"it is worse on {joined(failed)} by more than the margin"
    undecided = [guard.metric for guard in answer.guards if guard.outcome == "undecided"]
    return (
        f"its gain is above 0, but {answer.difference.seeds} seeds do not show that its loss on "
        f"{joined(undecided)} is below the margin"
    )


def _compared(proposal: Proposal, index: int, arm: Arm) -> Record:
    """Return the event that starts the comparison of a proposal with a different baseline."""
    return {
        "event": "compared",
        "number": proposal.number,
        "baseline": index,
        "settings": arm.settings,
        "command": arm.command,
        "revision": arm.revision,
        "files": arm.files,
    }


def _discard(proposal: Proposal, reason: str, answer: gate.Answer | None = None) -> GateVerdict:
    return GateVerdict(outcome="discard", proposal=proposal.number, reason=reason, answer=answer)


def _failed_alone(arm: Arm, base: Arm) -> dict[int, str]:
    """Return the failures of an arm on seeds on which its baseline has not failed. Seeds on which
    both fail are replaced.
    """
    return {seed: arm.failed[seed] for seed in base.not_failed(arm.failed)}


def _first_failure(failed: Mapping[int, str]) -> str:
    seed, reason = next(iter(failed.items()))
    return f"seed {seed} failed: {reason or 'no reason given'}"


def _more_of_recheck(
    recheck: Recheck, asked: Collection[int], answer: gate.Answer | None = None
) -> GateVerdict:
    """Return the missing runs of both baselines of a re-check on the requested seeds."""
    reason = "the runs so far are not conclusive"
    if not recheck.latest.scores or not recheck.first.scores:
        reason = "it compares the current baseline with the first one on fresh seeds"
    needs = (
        Need(arm=FIRST, seeds=recheck.first.missing(asked)),
        Need(arm=BASELINE, seeds=recheck.latest.missing(asked)),
    )
    return GateVerdict(
        outcome="more",
        reason=reason,
        answer=answer,
        needs=tuple(need for need in needs if need.seeds),
    )


def _decision_on_recheck(answer: gate.Answer) -> GateVerdict:
    """Return whether the chain of kept changes is confirmed, from the last analysis."""
    if answer.outcome == "keep":
        reason = "the baseline is better than the first one"
        return GateVerdict(outcome="confirmed", reason=reason, answer=answer)
    if answer.guard_state == "fails" or answer.difference.outcome == "better":
        return GateVerdict(outcome="unconfirmed", reason=_reason_of_guards(answer), answer=answer)
    seeds = answer.difference.seeds
    reason = f"{seeds} seeds do not show an improvement over the first baseline"
    return GateVerdict(outcome="unconfirmed", reason=reason, answer=answer)


def numbers(answer: gate.Answer | None) -> Record:
    """Return the fields of an answer that are recorded in an event; empty without an interval."""
    if answer is None or answer.difference.interval is None:
        return {}
    low, high = answer.difference.interval
    fields: Record = {
        "gain": answer.difference.gain,
        "low": low if math.isfinite(low) else None,  # JSON has no infinity
        "high": high,
        "level": answer.difference.level,
        "seeds": answer.difference.seeds,
    }
    if answer.guards:
        fields["guards"] = [guard.fields() for guard in answer.guards]
    return fields


def recorded_verdict(decision: Record) -> GateVerdict:
    """Return the verdict that an event records: the decision on a proposal or a re-check."""
    answer = None
    if "gain" in decision:
        low = decision["low"]
        difference = Difference(
            configuration="",
            baseline="",
            gain=decision["gain"],
            seeds=decision["seeds"],
            interval=(-math.inf if low is None else low, decision["high"]),
            level=decision["level"],
            outcome="better" if decision["outcome"] in ("keep", "confirmed") else "undecided",
        )
        guards = tuple(_recorded_guard(each, difference) for each in decision.get("guards", []))
        answer = gate.Answer(difference=difference, next_seeds=None, guards=guards)
    return GateVerdict(
        outcome=decision["outcome"],
        proposal=decision.get("number"),
        reason=decision["reason"],
        answer=answer,
    )


def _recorded_guard(fields: Record, score: Difference) -> CheckedGuard:
    """Return a guard from its recorded fields. The other fields of its difference are copied from
    the difference of the score.
    """
    sign = 1 if fields["larger_is_better"] else -1
    interval = None
    if fields["interval"] is not None:
        bounds = [math.nan if bound is None else sign * bound for bound in fields["interval"]]
        low, high = bounds[::sign]
        interval = (-math.inf if math.isnan(low) else low, high)
    found = replace(score, gain=sign * fields["difference"], interval=interval, outcome="undecided")
    return CheckedGuard(fields["metric"], fields["margin"], sign, fields["outcome"], found)
