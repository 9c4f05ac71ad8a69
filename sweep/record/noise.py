"""Seed noise measured by earlier sweeps, and the gains that a plan can detect."""

import contextlib
import functools
import json
import math
import statistics
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dashboards.fresh_seeds import MAX_SEEDS_IN_ROUNDS
from dashboards.statistics.power import SeedsNeeded, minimum_detectable_effect, seeds_needed
from dashboards.statistics.problems import ProblemSplit, paired_answers, split
from dashboards.statistics.problems_or_seeds import ProblemsOrSeeds, problems_or_seeds
from dashboards.statistics.rounds import make_design
from dashboards.statistics.seed_noise import Noise, seed_noise
from loptune.errors import UserError, listed
from loptune.files import Record
from loptune.run_names import MAX_NAME_LENGTH
from loptune.terminal.table import counted
from sweep.record.results import read_results
from sweep.record.sweep_record import SweepRecord, readable_sweeps
from sweep.search.history import Configuration, outcome
from sweep.space.scoring import scoring_of
from sweep.space.spec import SchedulerSpec, SweepSpec

FIRST_RUNS, SECOND_RUNS = "seeds-", "again-"  # prefixes of the batch names of `sweep noise`
_MAX_NAMED = 3  # maximum number of sweeps named in a message
_NOISE_SEEDS = [0, 1, 2]
_NOISE_SUFFIX = "-noise"


@dataclass(frozen=True, kw_only=True)
class WantedGain:
    """A gain that the user wants to detect, and the number of seeds that detecting it takes."""

    gain: float
    # seeds per configuration, if all configurations run on the same seeds
    everywhere: SeedsNeeded
    # maximum number of fresh seeds per configuration in a sequential confirmation
    in_rounds: int


@dataclass(frozen=True)
class NoiseForecast:
    """Forecast of the gains that a plan can detect."""

    sd: float  # standard deviation of a score between seeds
    dof: int  # degrees of freedom of ``sd``
    source: str
    # gain detected with 80% power; None with one seed or one configuration
    detectable: float | None
    wanted: dict[str, WantedGain]  # ``worthwhile`` or ``published`` -> that gain
    # whether problems or seeds are cheaper; None if no earlier sweep recorded which problems were
    # solved on several seeds
    cheaper: ProblemsOrSeeds | None = None


def measured_by_noise(folder: Path) -> Iterator[SweepRecord]:
    """Yield the sweeps that ``sweep noise`` has run in a folder. Second runs of a seed are left
    out, because they repeat its score.
    """
    for sweep in readable_sweeps(folder / "runs"):
        if sweep.folder.name.startswith(FIRST_RUNS):
            yield sweep


def sweep_noise(sweep: SweepRecord) -> Noise:
    """Return the seed noise from configurations that are complete on all seeds."""
    seeds = sweep.spec.seeds
    scores: dict[str, dict[Hashable, float]] = {}
    for configuration in sweep.configurations:
        if outcome(configuration, seeds).state == "COMPLETE":
            name = str(configuration.number)
            scores[name] = {seed: score(configuration, seed) for seed in seeds}
    return seed_noise(scores)


def unpaired_noise(sweep: SweepRecord) -> Noise:
    """Return the pooled noise within configurations; it includes seed effects that are common to
    all configurations.
    """
    noise = Noise(math.nan, 0)
    for configuration in sweep.configurations:
        scores = [score(configuration, seed) for seed in configuration.results]
        finite = [value for value in scores if not math.isnan(value)]
        if len(finite) > 1:
            noise = noise.pooled(Noise(statistics.stdev(finite), len(finite) - 1))
    return noise


def score(configuration: Configuration, seed: int) -> float:
    """Return the score of one trial; NaN if it failed or was stopped early."""
    result = configuration.results[seed]
    return result.score if result.state == "COMPLETE" else math.nan


def forecast_noise(
    spec: SweepSpec, earlier: Iterable[SweepRecord], planned: int
) -> NoiseForecast | None:
    """Return the forecast for ``planned`` configurations; None if no earlier sweep measured the
    noise.
    """
    earlier = list(earlier)
    measured = _measured(spec, earlier)
    if measured is None:
        return None
    noise, source = measured
    detectable = None
    if len(spec.seeds) > 1 and planned > 1:
        detectable = minimum_detectable_effect(
            noise.sd, len(spec.seeds), planned, blocks=spec.program.seeds_are_blocks
        )
    gains = {"worthwhile": spec.objective.worthwhile}
    if spec.objective.published is not None:
        gains["published"] = spec.objective.published
    wanted = {}
    for name, gain in gains.items():
        wanted[name] = WantedGain(
            gain=gain,
            everywhere=seeds_needed(
                gain, noise.sd, noise.dof, max(2, planned), blocks=spec.program.seeds_are_blocks
            ),
            in_rounds=make_design(noise, gain, 1, MAX_SEEDS_IN_ROUNDS).analyses[-1],
        )
    return NoiseForecast(
        sd=noise.sd,
        dof=noise.dof,
        source=source,
        detectable=detectable,
        wanted=wanted,
        cheaper=_problems_or_seeds(spec, earlier),
    )


def _problems_or_seeds(spec: SweepSpec, earlier: Sequence[SweepRecord]) -> ProblemsOrSeeds | None:
    """Compare problems and seeds in earlier sweeps with the same training and scoring; None if no
    such sweep recorded enough (see `problems_or_seeds`). A sweep with a damaged record is left out
    as a whole.
    """
    splits: list[ProblemSplit] = []
    training = evaluation = 0.0
    for other in earlier:
        if not _alike(other.spec, spec):
            continue
        with contextlib.suppress(UserError):  # a damaged record
            of_other = _problem_splits(other)
            records = [record for _, record in other.metrics()]
            splits += of_other
            training += _total(records, "time/step")
            evaluation += _total(records, "time/evaluation")
    return problems_or_seeds(splits, training, evaluation)


def _total(records: Iterable[Record], key: str) -> float:
    return math.fsum(float(record.get(key) or 0) for record in records)


def _problem_splits(sweep: SweepRecord) -> list[ProblemSplit]:
    """Return the variances of each configuration's difference from the first configuration."""
    answers = read_results(sweep).answers
    if len(answers) < 2:
        return []
    first, *others = answers
    pairs = [paired_answers(answers, other, first) for other in others]
    return [split(*pair) for pair in pairs if pair is not None]


def noise_lines(forecast: NoiseForecast | None, spec: SweepSpec, planned: int) -> list[str]:
    """Return the forecast as text."""
    if forecast is None:
        lines = ["seed noise is unknown, so the detectable improvement cannot be estimated"]
        if len(spec.seeds) > 1:
            lines.append("this sweep measures it: plan again when trials have ended on two seeds")
        return lines
    lines = [
        f"the standard deviation between seeds is {forecast.sd:.2g} "
        f"({forecast.source}, {counted(forecast.dof, 'degree')} of freedom)"
    ]
    seeds = (
        f"with {counted(len(spec.seeds), 'seed')} per configuration "
        f"({counted(planned, 'configuration')})"
    )
    if forecast.detectable is None:
        lines.append(f"{seeds}, no difference can be distinguished from chance")
    else:
        lines.append(
            f"{seeds}, an improvement of {forecast.detectable:.2g} would be detected with 80% power"
        )
    if forecast.cheaper is not None:
        lines.append(_cheaper_text(forecast.cheaper))
    for name, wanted in forecast.wanted.items():
        lines.append(
            f"detecting the {name} improvement of {wanted.gain:.2g} takes "
            f"{wanted.everywhere} per configuration, or with sweep confirm --rounds at most "
            f"{wanted.in_rounds} fresh seeds for the baseline and as many for the finalist"
        )
    return lines


def _cheaper_text(found: ProblemsOrSeeds) -> str:
    return (
        f"{found.evaluation_fraction:.0%} of the variance of a difference comes from evaluating on "
        f"few problems; narrowing the interval by {found.narrower:.0%} takes "
        f"{found.cost_of_problems:.0%} more time with twice the problems, and "
        f"{found.cost_of_seeds:.0%} more with more seeds: {found.cheaper} are cheaper"
    )


def noise_overrides(spec: SweepSpec, planned: int) -> list[str]:
    """Return the command-line words that turn a sweep into a measurement of its seed noise; empty
    if this would not need fewer trials than the sweep, or if the sweep has one configuration.

    Two configurations are measured, or all baselines if there are more.
    """
    searched = max(0, 2 - len(spec.baselines)) if spec.parameters else 0
    trials = (len(spec.baselines) + searched) * len(_NOISE_SEEDS)
    if planned == 1 or planned * len(spec.seeds) <= trials:
        return []
    words = [f"search.configurations={searched}"]
    if spec.search.tune_within is not None:
        words.append("search.tune_within=null")
    if spec.search.warm_start:
        words.append("search.warm_start=[]")
    if spec.scheduler != SchedulerSpec():  # a trial that is stopped early has no score
        words.append("scheduler=none")
    name = spec.name[: MAX_NAME_LENGTH - len(_NOISE_SUFFIX)]
    return [*words, f"seeds={json.dumps(_NOISE_SEEDS)}", "--name", f"{name}{_NOISE_SUFFIX}"]


def _measured(spec: SweepSpec, earlier: Iterable[SweepRecord]) -> tuple[Noise, str] | None:
    """Return the pooled noise of earlier sweeps with the same training and scoring, and its source
    in words; None if no such sweep measured any. Searched parameters may differ.
    """
    paired: dict[str, Noise] = {}
    unpaired: dict[str, Noise] = {}
    for other in earlier:
        if _alike(other.spec, spec):
            with contextlib.suppress(UserError):  # a damaged event log
                paired[other.folder.name] = sweep_noise(other)
                unpaired[other.folder.name] = unpaired_noise(other)
    measured = [(paired, ""), (unpaired, ", not paired")]
    if not spec.program.seeds_are_blocks:  # comparisons in such a sweep are not paired either
        measured.reverse()
    for noises, note in measured:
        varying = [name for name, noise in noises.items() if noise.dof and noise.sd > 0]
        if varying:
            pooled = functools.reduce(Noise.pooled, [noises[name] for name in varying])
            return pooled, f"measured in {listed(varying, _MAX_NAMED)}{note}"
    return None


def _alike(before: SweepSpec, spec: SweepSpec) -> bool:
    return scoring_of(before) == scoring_of(spec) and spec.program.scores_like(before.program)
