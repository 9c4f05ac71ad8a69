"""An A/A test: how much a program's scores differ between runs of one configuration."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dashboards.statistics.levels import SIGNIFICANCE_LEVEL
from dashboards.statistics.power import minimum_detectable_effect, sd_interval
from dashboards.statistics.seed_noise import noise_around_mean
from loptune.errors import ConfigError, UserError
from sweep.gate.batch import Batch, BatchResults, batch_name
from sweep.gate.pool import Place, RunPool
from sweep.record.noise import FIRST_RUNS, SECOND_RUNS
from sweep.search.event_log import read_event_log
from sweep.search.history import ENDED, STARTED

SEEDS_SHOWN = (3, 5, 8, 12, 20)  # numbers of seeds for which the detectable gain is shown
_WAIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class NoiseReport:
    """The seed noise estimated from runs of one configuration."""

    scores: dict[int, float]
    repeated: dict[int, float]  # scores of the second runs of some seeds
    failed: dict[int, str]  # seed -> reason
    minutes: float | None  # median duration of a run; None if no run has ended

    @property
    def sd(self) -> float:
        """The standard deviation of a score between seeds."""
        return noise_around_mean(self.scores.values()).sd

    @property
    def sd_interval(self) -> tuple[float, float]:
        """A 90% confidence interval for ``sd``, assuming normal scores."""
        return sd_interval(self.sd, len(self.scores) - 1, SIGNIFICANCE_LEVEL)

    @property
    def seed_matters(self) -> bool:
        """Whether scores differ between seeds."""
        return len(set(self.scores.values())) > 1

    @property
    def repeats(self) -> bool | None:
        """Whether equal seeds give equal scores; None if no seed was repeated."""
        if not self.repeated:
            return None
        return all(self.scores.get(seed) == score for seed, score in self.repeated.items())

    def detectable(self) -> dict[int, float]:
        """Return seeds per configuration -> improvement that is detected with 80% power."""
        return {seeds: minimum_detectable_effect(self.sd, seeds) for seeds in SEEDS_SHOWN}


def measure(folder: Path, seeds: int, repeats: int, *, program: str, resume: str) -> NoiseReport:
    """Run a program's own settings on ``seeds`` seeds, and again on the first ``repeats`` seeds.

    The folder must contain the search space (`PROGRAM`). Earlier runs of the same program in it are
    reused.

    Args:
        folder: folder of the runs.
        seeds: number of seeds.
        repeats: number of seeds that run twice.
        program: identifies the program with its settings and files.
        resume: command that continues after an interruption.

    Raises:
        ConfigError: fewer than two runs have a score.
        UserError: the runs could not start or finish.
        KeyboardInterrupt: the user interrupted the runs; call again to continue.
    """
    first = _batch(f"{FIRST_RUNS}{program}", seeds)
    batches = [first]
    if repeats:
        batches.append(_batch(f"{SECOND_RUNS}{program}", repeats))
    results = _run(folder, batches, resume)
    ended = results[first.name]
    repeated: dict[int, float] = {}
    if repeats:
        repeated = results[batches[1].name].scores
    if len(ended.scores) < 2:
        reason = next(iter(ended.failed.values()), "no reason given")
        raise ConfigError(
            f"{len(ended.scores)} of {seeds} runs have a score",
            str(folder),
            f"fix the program ({reason}), and start again with another --output",
            code="too-few-scores",
        )
    return NoiseReport(
        scores=ended.scores,
        repeated=repeated,
        failed=ended.failed,
        minutes=_minutes(folder / "runs" / first.name / "events.jsonl"),
    )


def _run(folder: Path, batches: Sequence[Batch], resume: str) -> dict[str, BatchResults]:
    """Run batches side by side, and return their results by name.

    Raises:
        UserError: a batch could not run.
    """
    results: dict[str, BatchResults] = {}
    with RunPool(folder, resume=resume) as pool:
        for batch in batches:
            pool.submit(batch, Place(Path.cwd()))
        while len(results) < len(batches):
            for name, result in pool.wait(_WAIT_S).items():
                if isinstance(result, UserError):
                    raise result
                results[name] = result
    return results


def _batch(name: str, seeds: int) -> Batch:
    numbers = tuple(range(seeds))
    return Batch(name=batch_name(name, numbers), settings={}, command=None, seeds=numbers)


def _minutes(path: Path) -> float | None:
    """Return the median minutes from a trial's start to its result; None if no trial has ended."""
    started: dict[tuple[int, int], float] = {}
    lasted = []
    for record in read_event_log(path):
        trial = record.get("configuration", -1), record.get("seed", -1)
        if record["event"] == STARTED:
            started[trial] = record["time"]
        elif record["event"] == ENDED and trial in started:
            lasted.append(record["time"] - started[trial])
    return float(np.median(lasted)) / 60 if lasted else None
