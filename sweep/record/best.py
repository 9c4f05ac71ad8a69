"""The configuration that a sweep's evidence names, and what speaks for it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweep.record.sweep_record import SweepRecord, planned_trials
from sweep.record.table import parameter_text
from sweep.search.history import Configuration, best, outcome
from sweep.space.arms import arm_of, arms
from sweep.space.spec import ObjectiveSpec
from trainer.shell.table import counted, number

if TYPE_CHECKING:
    from dashboards.results import Results


@dataclass(frozen=True)
class Best:
    """The winner of a sweep."""

    configuration: int
    score: float
    seeds: int
    parameters: dict[str, Any]

    def text(self, objective: ObjectiveSpec) -> str:
        """Return one line that names it."""
        return (
            f"best: configuration {self.configuration}  {parameter_text(self.parameters)}  "
            f"{objective.metric} {number(self.score)} (mean of {counted(self.seeds, 'seed')}, "
            f"last {counted(objective.window, 'evaluation').removeprefix('1 ')})"
        )


@dataclass(frozen=True)
class Choice:
    """What a sweep's evidence names. Before fresh seeds were run that is the best of the search, a
    candidate.
    """

    best: Best | None
    caveats: list[str]  # why it is not known to be better, or why nothing is named

    def text(self, objective: ObjectiveSpec) -> str:
        """Return a line that names the best, and below it the caveats; empty where there is
        neither.
        """
        named = [] if self.best is None else [self.best.text(objective)]
        return "\n       ".join([*named, *self.caveats])


def choose_best(sweep: SweepRecord, results: "Results | None" = None) -> Choice:
    """Return the configuration that fresh seeds name; where none were run, the best of the search.

    Fresh seeds that tell nothing apart, and the seeds that tuned several arms, name none.
    ``results`` are those of the folder. If None, they are read where fresh seeds were run; else the
    caveat names the command that compares.
    """
    spec = sweep.spec
    winner = best(sweep.configurations, spec.seeds, spec.objective.mode)
    confirmed = sweep.folder.confirmation.ledger.exists()
    if winner is None and not confirmed:
        return Choice(None, [])
    candidate = described(sweep, None if winner is None else str(winner.number))
    fresh = sweep.command("confirm")
    arms_best = f"each arm's best was chosen on these seeds; fresh ones compare them: {fresh}"
    tuned = spec.search.tune_within is not None
    if results is None and not confirmed:
        if tuned:
            return Choice(None, [arms_best])
        judged = f"how it compares on these seeds: {sweep.command('report')}"
        return Choice(candidate, [] if spec.confirms else [judged])
    # their libraries take a second to import
    from dashboards.pictures.verdict import headline
    from sweep.record.results import read_results

    results = results or read_results(sweep)
    front = headline(results)
    if results.fresh is not None and results.fresh.ended:
        return Choice(described(sweep, front.configuration), [front.sentence])
    if results.grid is not None:
        return Choice(None, [front.sentence])
    if tuned:
        return Choice(None, [arms_best])
    # what its seeds say is known of the sweep that it confirms
    caveats = [] if spec.confirms else [front.sentence]
    if caveats and results.verdict is not None and results.verdict.improves:
        caveats.append(f"Only fresh seeds give evidence: {sweep.command('confirm', '--rounds')}")
    return Choice(candidate, caveats)


def described(sweep: SweepRecord, configuration: str | None) -> Best | None:
    """Return a configuration of the sweep with its score; None where it has none."""
    numbered: dict[str, Configuration] = {str(each.number): each for each in sweep.configurations}
    if configuration is None or configuration not in numbered:
        return None
    winner = numbered[configuration]
    score = outcome(winner, sweep.spec.seeds).score
    if score is None:
        return None
    return Best(winner.number, score, len(sweep.spec.seeds), dict(winner.resolved))


def arm_lines(sweep: SweepRecord) -> list[str]:
    """Return the best of every arm so far, in a line each; none where nothing is tuned within."""
    spec = sweep.spec
    key = spec.search.tune_within
    if key is None:
        return []
    lines = []
    for name, arm in arms(spec).items():
        tuned = [
            configuration
            for configuration in sweep.configurations
            if arm_of(spec, configuration.parameters) == name
        ]
        winner = best(tuned, spec.seeds, spec.objective.mode)
        trials = sum(len(configuration.results) for configuration in tuned)
        state = "no configuration is complete"
        if winner is not None:
            point = {name: value for name, value in winner.parameters.items() if name != key}
            score = number(outcome(winner, spec.seeds).score)
            state = f"best #{winner.number} {score}  {parameter_text(point)}"
        lines.append(f"{name}: {trials} of {planned_trials(arm)} trials, {state}")
    return lines
