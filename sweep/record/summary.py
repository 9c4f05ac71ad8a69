"""What the ledger and the trials' folders say about a sweep; needs no Ray and no MLflow."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweep.record.folder import SweepFolder, command
from sweep.record.parent_run import TrialOutcome
from sweep.record.table import TrialRow, parameter_text
from sweep.search.history import Configuration, Result, TrialKey, best, outcome, replay
from sweep.search.ledger import read_ledger
from sweep.space.checks import MAX_GRID
from sweep.space.points import Space, fingerprint
from sweep.space.spec import ObjectiveSpec, SweepSpec
from trainer.commands.table import number
from trainer.config.schema import TrainConfig, value_of
from trainer.config.variants import configured_name, variant_of
from trainer.errors import printable
from trainer.files import read_json_lines

MAX_COUNTED = 1000  # points of a finite space that are compared one by one
COLOUR_TAG = "mlflow.runColor"  # which MLflow draws a run in
FAILURE_FILE = "failure.txt"  # in a trial's folder: the last thing that went wrong


@dataclass(frozen=True)
class Best:
    """The winner of a sweep."""

    configuration: int
    score: float
    seeds: int
    parameters: dict[str, Any]

    def text(self, objective: ObjectiveSpec) -> str:
        """One line that names it."""
        return (
            f"best: configuration {self.configuration}  {parameter_text(self.parameters)}  "
            f"{objective.metric} {number(self.score)} (mean of {self.seeds} seed{'s' * (self.seeds > 1)}, "
            f"last {objective.window} evaluations)"
        )


def caveats(spec: SweepSpec, folder: SweepFolder) -> list[str]:
    """Why the best of a sweep is not known to be better, in a line each."""
    if len(spec.seeds) == 1:
        return ["one seed is no evidence: seeds may differ by more; the report says what to run next"]
    if spec.adaptive:
        fresh = command("decide", folder)
        return [f"a candidate: the search followed these seeds, and only fresh ones give evidence: {fresh}"]
    return []


def configurations(folder: SweepFolder) -> list[Configuration]:
    """The configurations of a sweep, read without disturbing the driver that writes them."""
    if not folder.ledger.exists():
        return []
    return replay(read_ledger(folder.ledger))


def trial_rows(spec: SweepSpec, folder: SweepFolder, running: bool = False) -> list[TrialRow]:
    """One row for every trial proposed so far.

    Args:
        spec: the sweep's space.
        folder: its folder.
        running: whether a driver is at work; a trial that has started then counts as RUNNING.
    """
    return [
        _row(configuration, seed, spec, folder, running)
        for configuration in configurations(folder)
        for seed in spec.seeds
        if seed in configuration.results or not configuration.retired
    ]


def trial_outcomes(
    spec: SweepSpec, folder: SweepFolder, known: Sequence[Configuration] | None = None
) -> list[TrialOutcome]:
    """How the trials that have ended did, for their MLflow runs; colours are those of the report.

    Args:
        spec: the sweep's space.
        folder: its folder.
        known: its configurations; read from the ledger if None.
    """
    from dashboards.labels import colours  # which imports pandas

    ended = [one for one in (configurations(folder) if known is None else known) if one.results]
    variants = {one.number: variant_of(_settings(spec.base, one.resolved)) for one in ended}
    shades = colours(variants.values())
    return [
        TrialOutcome(
            key=f"{folder.name}/{TrialKey(one.number, seed).name}",
            run_name=trial_name(_settings(spec.base, one.resolved), one.resolved, seed),
            state=result.state,
            reason=failure_reason(result, folder.trial(TrialKey(one.number, seed).name)),
            score=result.score,
            tags={
                **trial_tags(folder.name, one.number, seed),
                "loptune.variant": variants[one.number],
                COLOUR_TAG: shades[variants[one.number]],
            },
            params=one.resolved,
        )
        for one in ended
        for seed, result in one.results.items()
    ]


def trial_name(setting: Callable[[str], Any], searched: Mapping[str, Any], seed: int) -> str:
    """What a trial is called where people compare them: its configuration and its seed."""
    own = {key: value for key, value in searched.items() if key != "seed"}
    return f"{configured_name(setting, own)} · seed {seed}"


def _settings(base: TrainConfig, resolved: Mapping[str, Any]) -> Callable[[str], Any]:
    """Key -> value in a configuration, without validating it again: a large sweep asks thousands of times."""

    def setting(key: str) -> Any:
        section, _, name = key.partition(".")
        part = resolved.get(section)
        if key in resolved:
            return resolved[key]
        return part[name] if isinstance(part, Mapping) and name in part else value_of(base, key)

    return setting


def trial_tags(sweep: str, configuration: int, seed: int) -> dict[str, str]:
    """The MLflow tags that place a trial."""
    trial = TrialKey(configuration, seed).name
    return {
        "loptune.sweep": sweep,
        "loptune.trial": trial,
        "loptune.configuration": str(configuration),
        "loptune.seed": str(seed),
        "loptune.run": f"{sweep}/{trial}",
    }


def best_configuration(spec: SweepSpec, folder: SweepFolder) -> Best | None:
    """The complete configuration with the best mean score over its seeds."""
    winner = best(configurations(folder), spec.seeds, spec.objective.mode)
    if winner is None:
        return None
    score = outcome(winner, spec.seeds).score
    assert score is not None
    return Best(winner.number, score, len(spec.seeds), dict(winner.resolved))


def planned_trials(spec: SweepSpec) -> int:
    """How many trials a sweep will have; a finite space ends when it is exhausted."""
    searched = spec.search.configurations
    wanted = None if searched is None else len(spec.baselines) + searched
    space = Space(spec.parameters)
    if space.is_finite and space.grid_size(MAX_COUNTED + 1) <= MAX_COUNTED:
        baselines = (space.complete(baseline, spec.base) for baseline in spec.baselines)
        points = itertools.chain(baselines, space.grid(lambda parameter: parameter.options or []))
        # Baselines are not run again, nor are points that differ only in a switch.
        different = len({fingerprint(space.resolve(point, spec.base)) for point in points})
        wanted = different if wanted is None else min(wanted, different)
    elif wanted is None:
        wanted = len(spec.baselines) + space.grid_size(MAX_GRID)
    return wanted * len(spec.seeds)


def gpu_hours_spent(spec: SweepSpec, folder: SweepFolder) -> float:
    """GPU hours of the steps and evaluations that are on record."""
    return sum(device_hours(spec, folder).values()) if spec.resources.gpus_per_trial else 0.0


def device_hours(spec: SweepSpec, folder: SweepFolder) -> dict[str, float]:
    """Trial -> hours of its GPUs, or of its CPUs where it has none, in recorded steps and evaluations."""
    resources = spec.resources
    devices = resources.gpus_per_trial or resources.workers_per_trial * resources.cpus_per_worker
    return {
        metrics.parent.name: devices
        / 3600
        * sum(
            float(record.get("time/step") or 0) + float(record.get("time/evaluation") or 0)
            for record, _ in read_json_lines(metrics)
        )
        for metrics in (folder.root / "trials").glob("*/metrics.jsonl")
    }


def step_seconds(folder: SweepFolder) -> list[float]:
    """The measured ``time/step`` of all trials of a sweep."""
    return [
        float(record["time/step"])
        for metrics in (folder.root / "trials").glob("*/metrics.jsonl")
        for record, _ in read_json_lines(metrics)
        if record.get("time/step") is not None
    ]


def failure_reason(result: Result, run_dir: Path) -> str:
    """Why a trial failed: what its result says, else the last error of its ranks."""
    if result.state != "FAIL":
        return ""
    return failure_note(run_dir) or printable(result.reason)


def failure_note(run_dir: Path) -> str:
    """The last thing that went wrong in a trial; empty if nothing did since it was last started."""
    note = run_dir / FAILURE_FILE
    return printable(note.read_text(encoding="utf-8").strip()) if note.exists() else ""


def last_step(run_dir: Path) -> int:
    """The last training step in a trial's ``metrics.jsonl``, from the end of the file."""
    path = run_dir / "metrics.jsonl"
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        start = line.find('"step": ')
        if start >= 0 and line.endswith("}"):
            digits = line[start + 8 :].split(",", 1)[0].split("}", 1)[0]
            return int(digits) if digits.isdigit() else 0
    return 0


def _row(configuration: Configuration, seed: int, spec: SweepSpec, folder: SweepFolder, running: bool) -> TrialRow:
    key = TrialKey(configuration.number, seed)
    run_dir = folder.trial(key.name)
    result = configuration.results.get(seed)
    row = TrialRow(key.name, configuration.number, seed, parameters=configuration.resolved)
    row.step = last_step(run_dir)
    row.total_steps = configuration.resolved.get("max_steps", spec.base.max_steps)
    if result is not None:
        row.state, row.score = result.state, result.score
        row.reason = failure_reason(result, run_dir)
    elif running and (run_dir / "config.yaml").exists():
        row.state = "RUNNING"
    return row
