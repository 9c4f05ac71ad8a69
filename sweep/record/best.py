"""Choose a sweep's best configuration, and state the caveats."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loptune.terminal.table import counted, number
from sweep.record.baseline import first_baseline
from sweep.record.sweep_record import SweepRecord, planned_trials
from sweep.record.trial_table import parameter_text, setting_text
from sweep.search.history import Configuration, best, front_numbers, outcome, ranked
from sweep.space.arms import arm_of, arms
from sweep.space.spec import ObjectiveSpec

if TYPE_CHECKING:
    from dashboards.next_step import NextStep
    from dashboards.results import Results


@dataclass(frozen=True)
class BestConfiguration:
    """The best configuration of a sweep."""

    configuration: int
    score: float
    seeds: int
    parameters: dict[str, Any]
    shown: str  # the parameters on one line
    origin: str = ""  # for a finalist, its number in the original sweep, as text

    def text(self, objective: ObjectiveSpec) -> str:
        """Return the configuration and its score on one line, as the best one."""
        return f"best: {self.described(objective)}"

    def described(self, objective: ObjectiveSpec) -> str:
        """Return the configuration and its score on one line."""
        return (
            f"configuration {self.configuration}{self.origin}  {self.shown}  "
            f"{objective.name} {number(self.score)} (mean of {counted(self.seeds, 'seed')}, "
            f"{objective.place})"
        )


@dataclass(frozen=True)
class BestWithCaveats:
    """The chosen configuration and its caveats. Until fresh seeds have run, it is only a
    candidate: the best configuration of the search.
    """

    best: BestConfiguration | None
    caveats: list[str]  # why it is not confirmed, or why nothing was chosen
    next_step: "NextStep | None" = None  # the report's recommendation

    def text(self, objective: ObjectiveSpec) -> str:
        """Return the best configuration and its caveats, one per line; empty if there are none."""
        named = [] if self.best is None else [self.best.text(objective)]
        step = [] if self.next_step is None else [self.next_step.text]
        return "\n       ".join([*named, *self.caveats, *step])


def choose_best(sweep: SweepRecord, results: "Results | None" = None) -> BestWithCaveats:
    """Return the best configuration on fresh seeds, or of the search if no fresh seeds were run.

    Nothing is chosen if fresh seeds do not separate the finalists, or if arms were tuned and no
    confirmation has ended. If ``results`` is None, they are read only if fresh seeds were run;
    otherwise the caveat contains the command for the comparison.
    """
    spec = sweep.spec
    winner = best(sweep.configurations, spec.seeds, spec.objective)
    candidate = None if winner is None else _with_score(sweep, winner)
    has_fresh_seeds = sweep.folder.confirmation.event_log.exists()
    if spec.confirms:  # a confirmation is judged in the report of the sweep that it confirms
        return BestWithCaveats(candidate, [])
    if winner is None and not has_fresh_seeds:
        return BestWithCaveats(None, [])
    if results is None and not has_fresh_seeds:
        return _not_compared(sweep, candidate)
    return _compared(sweep, candidate, results)


def _not_compared(sweep: SweepRecord, candidate: BestConfiguration | None) -> BestWithCaveats:
    """Return the best of a search with the command that compares it.

    Args:
        sweep: the sweep.
        candidate: the best configuration of the search, if one is complete.
    """
    if sweep.spec.search.tune_within is not None:
        complete = ranked(sweep.configurations, sweep.spec.seeds, sweep.spec.objective)
        selected = "each arm's best was selected on these seeds"
        caveat = f"{selected}; to compare the arms on fresh seeds: {sweep.command('confirm')}"
        if first_baseline(sweep.spec, complete) is None:
            first = next(iter(arms(sweep.spec)))
            caveat = f"{selected}; no configuration of {first} is complete to compare them with"
        return BestWithCaveats(None, [caveat])
    caveat = f"to compare it with the baseline: {sweep.command('report')}"
    return BestWithCaveats(candidate, [caveat])


def _compared(
    sweep: SweepRecord, candidate: BestConfiguration | None, results: "Results | None"
) -> BestWithCaveats:
    """Return the best of a search, or of its fresh seeds, with the headline of its report."""
    # these modules import libraries that take a second to load
    from dashboards.headline import headline
    from dashboards.next_step import next_step
    from sweep.record.results import read_results

    results = results or read_results(sweep)
    summary = headline(results)
    step = next_step(results)
    chosen = candidate
    if results.fresh is not None and results.fresh.ended:
        chosen = scored_configuration(sweep, summary.configuration)
    elif sweep.spec.search.tune_within is not None:
        chosen = None
    elif results.nothing_chosen:  # scores on these seeds selected nothing, so they are evidence
        chosen = scored_configuration(sweep, summary.configuration) or candidate
    return BestWithCaveats(chosen, [summary.sentence], step)


def front_of(sweep: SweepRecord) -> list[int]:
    """Return the configurations on the Pareto front of both objectives, ordered by the first
    objective; empty if the sweep records no second objective.
    """
    members = front_numbers(sweep.spec, sweep.configurations)
    return [sweep.spec.reported(member) for member in members]


def scored_configuration(sweep: SweepRecord, configuration: str | None) -> BestConfiguration | None:
    """Return the configuration with a number, as text, and its score; None if the number is None or
    unknown, or the configuration has no score.
    """
    for each in sweep.configurations:
        if str(each.number) == configuration:
            return _with_score(sweep, each)
    return None


def _with_score(sweep: SweepRecord, configuration: Configuration) -> BestConfiguration | None:
    spec = sweep.spec
    score = outcome(configuration, spec.seeds).score
    if score is None:
        return None
    origin = ""
    if spec.confirms is not None:
        origin = f", #{spec.reported(configuration.number)} of {spec.confirms.sweep}"
    return BestConfiguration(
        configuration=configuration.number,
        score=score,
        seeds=len(spec.seeds),
        parameters=dict(configuration.resolved),
        shown=setting_text(spec, configuration.resolved, configuration.parameters),
        origin=origin,
    )


def arm_lines(sweep: SweepRecord) -> list[str]:
    """Return one line per arm with its best configuration so far; empty without
    `search.tune_within`.
    """
    spec = sweep.spec
    key = spec.search.tune_within
    if key is None:
        return []
    all_arms = arms(spec)
    by_arm: dict[str, list[Configuration]] = {name: [] for name in all_arms}
    for configuration in sweep.configurations:
        by_arm[arm_of(spec, configuration.parameters)].append(configuration)
    lines = []
    for name, arm in all_arms.items():
        winner = best(by_arm[name], spec.seeds, spec.objective)
        trials = sum(len(configuration.results) for configuration in by_arm[name])
        state = "no configuration is complete"
        if winner is not None:
            point = dict(winner.parameters)
            for named in (key, *spec.program.rule_keys):  # keys that the arm's name stands for
                point.pop(named, None)
            score = number(outcome(winner, spec.seeds).score)
            state = f"best #{winner.number} {score}  {parameter_text(point)}"
        lines.append(f"{name}: {trials} of {planned_trials(arm)} trials, {state}")
    return lines
