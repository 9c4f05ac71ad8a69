"""Confirm finalists in rounds of fresh seeds until the comparison with the baseline is decided.

The event log of NAME-confirm starts with the design (interim analyses and boundaries). Each
analysis appends the results of its finalists. Resuming needs nothing else.
"""

import math
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from dashboards.fresh_seeds import MAX_SEEDS_IN_ROUNDS
from dashboards.statistics.checked_guards import decided_with_guards, state_of
from dashboards.statistics.difference import Difference
from dashboards.statistics.rounds import interim_results, make_design
from dashboards.statistics.seed_noise import Noise
from dashboards.words import interim_result_text, no_spread
from loptune.errors import INTERRUPTED, ConfigError, MissingError
from loptune.run_names import lock_folder
from loptune.terminal.table import counted
from sweep.record.baseline import is_baseline
from sweep.record.folder import read_spec, write_spec
from sweep.record.guard_scores import checked, interim_guards
from sweep.record.noise import score, sweep_noise
from sweep.record.recorded_rounds import RecordedRounds, recorded_rounds
from sweep.record.sweep_record import SweepRecord
from sweep.search.event_log import EventLog
from sweep.search.history import ANALYSIS, PLAN
from sweep.space.spec import SweepSpec
from sweep.winner.confirm import finalists_of, fresh_space

_BASELINE = "0"  # the baseline's configuration number in NAME-confirm


@dataclass(frozen=True, kw_only=True)
class RoundsOptions:
    """Options of `sweep confirm --rounds`."""

    finalists: int = 2  # in addition to the baseline
    max_seeds: int = MAX_SEEDS_IN_ROUNDS  # fresh seeds per configuration
    hours: float | None = None  # budget of all rounds in device hours
    test: str | None = None  # file of the held-out problems
    resume_command: str = ""


def decide(
    sweep: SweepRecord,
    options: RoundsOptions,
    run: Callable[[SweepRecord], int],
    say: Callable[[str], None],
) -> tuple[int, RecordedRounds]:
    """Run rounds until the outcome is decided, the budget is used up, or the user stops them.

    Returns the exit code and the decision so far. ``run`` trains the missing trials of a sweep and
    returns an exit code; ``say`` prints a line.

    Raises:
        MissingError: the sweep has no complete baseline or no other complete configuration, or the
            baseline failed on every fresh seed.
        ConfigError: its finalists already ran on a fixed number of seeds.
    """
    fresh, rounds = _open_confirmation(sweep, options, say)
    say(_plan_text(rounds, sweep.spec))
    code = 0
    budget = options.hours
    hours = "GPU-hours" if sweep.spec.resources.gpus_per_trial else "CPU-hours"
    while rounds.outcome == "open":
        seeds = rounds.design.analyses[len(rounds.analyses)]
        numbers = [fresh.spec.seeds[0] + number for number in range(seeds)]
        fresh = SweepRecord(fresh.spec.model_copy(update={"seeds": numbers}), fresh.folder)
        price = _price(fresh, sweep)
        if budget is not None and price > budget:
            reason = "Not started: the first round needs"
            if rounds.analyses:
                reason = "Stopped: the next round would bring the total to"
            say(f"{reason} {price:.3g} {hours}, but the budget is {budget:g}")
            say(f"Undecided. With a larger budget: {options.resume_command}")
            return code, rounds
        total = " in total" if rounds.analyses else ""
        say(f"next round: {counted(_missing(fresh), 'trial')}, about {price:.2g} {hours}{total}")
        code = run(fresh)
        fresh = fresh.reloaded()
        has_ended = code in (0, 1)
        if not has_ended or _missing(fresh):
            say(f"Undecided. To continue: {options.resume_command}")
            return INTERRUPTED if has_ended else code, rounds
        rounds = _analyze(fresh, rounds)
        place = f"round {len(rounds.analyses)} of at most {len(rounds.design.analyses)}"
        for result in rounds.analyses[-1]:
            say(f"{place}: {_decision_text(result, rounds, fresh)}")
        if rounds.outcome == "open" and all(
            result.interval is None for result in rounds.analyses[-1]
        ):
            say(f"Stopped, because further rounds would not decide. {no_spread()}")
            say(f"Undecided. To run the next round anyway: {options.resume_command}")
            return INTERRUPTED, rounds
    say(f"{sweep.folder.name}: {_outcome_text(rounds, fresh)}")
    return code, rounds


def _open_confirmation(
    sweep: SweepRecord, options: RoundsOptions, say: Callable[[str], None]
) -> tuple[SweepRecord, RecordedRounds]:
    """Return the finalists' sweep, created if missing, and its decision so far.

    Raises:
        MissingError: the sweep has no complete baseline, or no other complete configuration.
        ConfigError: its finalists already ran on a fixed number of seeds.
    """
    folder = sweep.folder.confirmation
    if not folder.event_log.exists():
        _create(sweep, options)
    fresh = SweepRecord(read_spec(folder), folder)
    rounds = recorded_rounds(fresh)
    if rounds is None or fresh.spec.confirms is None:
        raise ConfigError(
            f"the finalists of {sweep.folder.name} already ran on a fixed number of seeds, so "
            "those seeds are not fresh any more",
            str(folder.root),
            f"{fresh.command('status')} shows them",
            code="confirmed-on-fixed-seeds",
        )
    chosen = finalists_of(sweep, options.finalists)
    now = [configuration.number for configuration in chosen]
    first = fresh.spec.confirms.configurations
    if now != first:
        say(
            f"keeping the finalists of the first round, {_numbers(first)}, although the sweep's "
            f"best are now {_numbers(now)}"
        )
    return fresh, rounds


def _numbers(configurations: Sequence[int]) -> str:
    return ", ".join(f"#{number}" for number in configurations)


def _create(sweep: SweepRecord, options: RoundsOptions) -> None:
    spec = sweep.spec
    chosen = finalists_of(sweep, options.finalists)
    if len(chosen) < 2 or not is_baseline(spec, chosen[0]):
        raise MissingError(
            f"{sweep.folder.name} needs a baseline and another configuration that are complete "
            "on all seeds",
            str(sweep.folder.root),
            sweep.command("status"),
            code="nothing-to-confirm",
        )
    noise = sweep_noise(sweep)
    if noise.sd == 0:  # equal scores mean coarse scores, not zero noise
        noise = Noise(float("nan"), 0)
    design = make_design(noise, spec.objective.worthwhile, len(chosen) - 1, options.max_seeds)
    # The budget is checked before each round, over all rounds.
    limits = spec.limits.model_copy(update={"gpu_hours": None, "time_budget_s": None})
    held_out = options.test is not None or spec.program.held_out_instead
    space = fresh_space(sweep, chosen, design.analyses[0], options.test, held_out=held_out)
    space = space.model_copy(update={"limits": limits})
    folder = sweep.folder.confirmation
    folder.root.mkdir(parents=True, exist_ok=True)
    sd = noise.sd if noise.dof else None  # JSON has no NaN
    with lock_folder(folder.root, "sweep"):
        write_spec(folder, space)
        EventLog(folder.event_log).append(
            {
                "event": PLAN,
                "design": asdict(design),
                "sd": sd,
                "dof": noise.dof,
                "time": time.time(),
            }
        )


def _analyze(fresh: SweepRecord, rounds: RecordedRounds) -> RecordedRounds:
    """Run the interim analysis of the open finalists, and record the results.

    Raises:
        MissingError: the baseline has no score on a fresh seed.
    """
    scores = _scores(fresh)
    if not any(map(math.isfinite, scores[_BASELINE].values())):
        raise MissingError(
            "the baseline failed on every fresh seed",
            str(fresh.folder.root),
            f"{fresh.command('status')} shows why",
            code="baseline-failed",
        )
    design = rounds.design
    differences = interim_guards(fresh, design, _BASELINE)
    results = []
    guards = {}
    for result in interim_results(design, scores, _BASELINE, fresh.spec.objective.mode):
        finalist = result.configuration
        if finalist in rounds.retired:
            continue
        guards[finalist] = differences.get(finalist, {})
        state = state_of(checked(fresh, guards[finalist]))
        results.append(replace(result, outcome=decided_with_guards(result.outcome, state)))
    _record_analysis(fresh, results, guards)
    return replace(
        rounds, analyses=(*rounds.analyses, tuple(results)), guards={**rounds.guards, **guards}
    )


def _scores(fresh: SweepRecord) -> dict[str, dict[Hashable, float]]:
    """Return configuration -> seed -> score of the ended trials; NaN for a failed trial."""
    scores: dict[str, dict[Hashable, float]] = {}
    for configuration in fresh.configurations:
        ended = [seed for seed in fresh.spec.seeds if seed in configuration.results]
        scores[str(configuration.number)] = {seed: score(configuration, seed) for seed in ended}
    return scores


def _record_analysis(
    fresh: SweepRecord,
    results: Sequence[Difference],
    guards: Mapping[str, Mapping[str, Difference]],
) -> None:
    """Append an interim analysis to the event log.

    Args:
        fresh: the sweep of the finalists.
        results: the open finalists' differences from the baseline.
        guards: finalist -> metric of a guard -> difference.
    """
    with lock_folder(fresh.folder.root, "sweep", create=False):
        EventLog(fresh.folder.event_log, create=False).append(
            {
                "event": ANALYSIS,
                "results": [asdict(result) for result in results],
                "guards": {
                    finalist: {metric: asdict(difference) for metric, difference in row.items()}
                    for finalist, row in guards.items()
                },
                "time": time.time(),
            }
        )


def _decision_text(result: Difference, rounds: RecordedRounds, fresh: SweepRecord) -> str:
    """Return the decision of an interim analysis on a finalist, with its guards."""
    return interim_result_text(
        f"#{fresh.spec.reported(int(result.configuration))}",
        result,
        rounds.design.worthwhile,
        checked(fresh, rounds.guards.get(result.configuration, {})),
    )


def _outcome_text(rounds: RecordedRounds, fresh: SweepRecord) -> str:
    """Return the result of all rounds as a sentence."""
    latest = {result.configuration: result for result in rounds.results}
    better = [result for result in latest.values() if result.outcome == "better"]
    if better:
        best = max(better, key=lambda result: result.gain)
        return _decision_text(best, rounds, fresh)
    if rounds.outcome == "not better":
        texts = [_decision_text(result, rounds, fresh) for result in latest.values()]
        return "; ".join(texts)
    worthwhile = rounds.design.worthwhile
    undecided = (
        "undecided: no finalist is shown to be better, and none is shown to improve by less than "
        f"{worthwhile:g}"
    )
    if fresh.spec.objective.guards:
        texts = [_decision_text(result, rounds, fresh) for result in latest.values()]
        return f"{undecided}: {'; '.join(texts)}"
    return undecided


def _missing(fresh: SweepRecord) -> int:
    """Count the trials of the current round without a result."""
    seeds = fresh.spec.seeds
    not_proposed = len(fresh.spec.baselines) - len(fresh.configurations)
    missing = not_proposed * len(seeds)
    for configuration in fresh.configurations:
        if not configuration.retired:
            missing += len(configuration.open_seeds(seeds))
    return missing


def _price(fresh: SweepRecord, sweep: SweepRecord) -> float:
    """Return the device hours of all rounds including the next one, which is estimated from the
    mean of the trials so far; 0 if no trial has run.
    """
    spent = fresh.device_hours()
    sample = list(spent.values()) or list(sweep.device_hours().values())
    if not sample:
        return 0.0
    return sum(spent.values()) + _missing(fresh) * statistics.mean(sample)


def _plan_text(rounds: RecordedRounds, spec: SweepSpec) -> str:
    design = rounds.design
    noise = rounds.known
    spread = "seed noise is unknown"
    if noise.dof:
        spread = f"the standard deviation between seeds is {noise.sd:.2g}"
    return (
        f"plan: {counted(design.finalists, 'finalist')} and the baseline, with interim analyses "
        f"after {', '.join(map(str, design.analyses))} fresh seeds each; an improvement of "
        f"{design.worthwhile:g} in {spec.objective.name} is worthwhile; "
        f"{spread}"
    )
