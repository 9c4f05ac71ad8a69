"""Plan a sweep before anything starts: size, cost and missing resources."""

import logging
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dashboards.fresh_seeds import ARM_SEEDS
from dashboards.statistics.power import minimum_detectable_effect
from loptune.errors import MissingError
from loptune.files import format_bytes, free_bytes
from loptune.run_names import command_line
from loptune.terminal.table import counted, duration, print_table
from sweep.programs.base import Footprint, Program, Sample
from sweep.record.noise import (
    NoiseForecast,
    forecast_noise,
    measured_by_noise,
    noise_lines,
    noise_overrides,
)
from sweep.record.sweep_record import (
    SweepRecord,
    planned_configurations,
    planned_trials,
    readable_sweeps,
)
from sweep.record.trial_table import parameter_text, value_text
from sweep.space.arms import arms
from sweep.space.file import automatic_sampler
from sweep.space.parameters import ParameterSpec
from sweep.space.spec import SweepSpec
from sweep.trials.cluster import Node, check_fit, concurrent_trials, node_text

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Disk:
    """Disk space of a sweep's checkpoints [bytes]."""

    one_checkpoint: int  # size of one checkpoint of a running trial
    ended_trial: int  # total size of what an ended trial keeps
    at_most: int  # maximum during the sweep


@dataclass(frozen=True)
class Plan:
    """Size and cost of a sweep."""

    name: str
    configurations: int
    trials: int
    gpus_per_trial: float
    cpus_per_trial: int
    nodes: list[Node]
    slots: int  # concurrent trials
    waiting: int  # trials that do not start at once
    steps: int | None  # training steps of the longest trial
    searches_steps: bool  # whether the number of steps is a searched parameter
    disk: Disk | None  # None if sizes are unknown or the program manages its own checkpoints
    free_bytes: int
    short: list[str]  # a description of each missing resource
    # memory per rank; None if it is unknown, or small as for the built-in tiny model on the CPU
    memory: Footprint | None
    step_seconds: float | None
    trial_seconds: float | None  # time of a trial, without evaluations if computed from steps
    step_source: str  # source of the estimate
    # time of the whole sweep, without evaluations if computed from steps
    seconds: float | None
    gpu_hours: float | None
    # detectable gains; None if no earlier sweep measured the noise
    noise: NoiseForecast | None


def make_plan(
    sweep: SweepRecord, nodes: list[Node], given_step_seconds: float | None, noise_folder: Path
) -> Plan:
    """Make a plan, without starting anything or importing Ray or torch.

    The noise, and the time per training step without ``given_step_seconds``, come from recorded
    sweeps: the sweeps in the runs folder, including the first trials of this sweep, and the runs of
    ``sweep noise`` in ``noise_folder``. If the number of steps is unknown, the time per trial is
    used.
    """
    spec = sweep.spec
    folder = sweep.folder
    trials = sweep.planned
    configurations = planned_configurations(spec)
    resources = spec.resources
    earlier = [*readable_sweeps(folder.runs_dir), *measured_by_noise(noise_folder)]
    parallel = min(concurrent_trials(spec, nodes), trials)
    steps, searches_steps = spec.program.steps(spec.values_of_trials())
    seconds_per_step = given_step_seconds
    source = "given"
    trial_seconds = seconds = gpu_hours = None
    if steps is None:
        trial_seconds, source = _measured(earlier, spec.program.scores_like, _trial_seconds)
    elif seconds_per_step is None:
        seconds_per_step, source = _measured(
            earlier, spec.program.same_step_time, SweepRecord.step_seconds
        )
    if steps is not None and seconds_per_step is not None:
        trial_seconds = steps * seconds_per_step
    if trial_seconds is not None and parallel:
        seconds = math.ceil(trials / parallel) * trial_seconds
        gpu_hours = trials * trial_seconds * resources.gpus_per_trial / 3600
    at_a_time = max(1, parallel)
    disk = _planned_disk(spec, trials, at_a_time)
    memory = spec.program.memory(resources)
    free = free_bytes(folder.runs_dir)
    return Plan(
        name=spec.name,
        configurations=configurations,
        trials=trials,
        gpus_per_trial=resources.gpus_per_trial,
        cpus_per_trial=resources.cpus_per_trial,
        nodes=nodes,
        slots=parallel,
        waiting=trials - parallel,
        steps=steps,
        searches_steps=searches_steps,
        disk=disk,
        free_bytes=free,
        short=[*_shortages(spec, nodes, disk, free), *short_memory(memory, nodes, at_a_time)],
        memory=memory,
        step_seconds=seconds_per_step,
        trial_seconds=trial_seconds,
        step_source=source,
        seconds=seconds,
        gpu_hours=gpu_hours,
        noise=forecast_noise(spec, earlier, configurations),
    )


def _planned_disk(spec: SweepSpec, trials: int, at_a_time: int) -> Disk | None:
    kept = spec.program.checkpoints(spec.resources.gpus_per_trial > 0)
    if kept is None or kept.running_bytes is None or kept.ended_bytes is None:
        return None
    # A new checkpoint is complete before the oldest is removed.
    running = kept.running_bytes * (kept.kept + 1) * at_a_time
    at_most = running + kept.ended_bytes * (trials - at_a_time)
    return Disk(kept.running_bytes, kept.ended_bytes, at_most)


def _shortages(spec: SweepSpec, nodes: list[Node], disk: Disk | None, free: int) -> Iterator[str]:
    try:
        check_fit(spec.resources, nodes)
    except MissingError as error:
        yield error.what
    if disk is not None and disk.at_most > free:
        yield f"disk: {format_bytes(disk.at_most)} needed, {format_bytes(free)} free"


def short_memory(memory: Footprint | None, nodes: list[Node], at_a_time: int) -> Iterator[str]:
    """Yield shortages of GPU memory and host memory for the concurrent trials."""
    if memory is None:
        return
    if memory.device.on_gpu and memory.margin < 0:
        needed = max(memory.training, memory.sampling)
        yield (
            f"GPU memory: {format_bytes(needed)} needed, {format_bytes(memory.device.total_bytes)} "
            "available per GPU"
        )
    known = [node.memory for node in nodes if node.memory is not None]
    if len(known) < len(nodes):
        return
    needed = memory.host * at_a_time
    if needed > sum(known):
        trials = "one trial" if at_a_time == 1 else f"{at_a_time} trials at a time"
        yield (
            f"host memory of {trials}: {format_bytes(needed)} needed, "
            f"{format_bytes(sum(known))} installed"
        )


def _machines(nodes: list[Node]) -> str:
    machines = []
    for node, count in Counter(nodes).items():
        times = f"{count} x " if count > 1 else ""
        machines.append(times + node_text(node))
    return ", ".join(machines)


def as_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON values."""
    memory = None if plan.memory is None else plan.memory.as_json()
    return {**asdict(plan), "memory": memory}


def print_plan(plan: Plan, sweep: SweepRecord, typed: Sequence[str], renamed: bool) -> None:
    """Print the resolved space, its plan, and the command that runs it.

    ``typed`` are the words of the command line that describe the sweep, without its name; if
    ``renamed``, its name differs from the name in the file.
    """
    spec = sweep.spec
    run = ["sweep", "run", *typed]
    runs_dir = sweep.folder.runs_dir
    if spec.parameters:
        rows = [[key, _range(p), _condition(p)] for key, p in spec.parameters.items()]
        print_table(["parameter", "range", "when"], rows)
    for index, baseline in enumerate(spec.baselines):
        print(f"baseline {index}: {parameter_text(baseline)}")
    print()
    print_section("noise", noise_lines(plan.noise, spec, plan.configurations))
    for heading, lines in _sections(plan, spec, sweep.command("confirm")):
        print_section(heading, lines)
    # Commands are printed outside of the table, which would wrap long ones.
    if plan.noise is None:
        measuring = noise_overrides(spec, plan.configurations)
        if measuring:
            command = command_line(*run, *measuring, runs_dir=runs_dir)
            print(f"\nto measure the seed noise first:\n  {command}")
    named = ["--name", spec.name] if renamed else []
    print(f"\nto run this plan:\n  {command_line(*run, *named, runs_dir=runs_dir)}")


def print_sample(sample: Sample, spec: SweepSpec, configurations: int) -> None:
    """Print the sample of the initial policy and the improvements that its evaluation error hides;
    print advice to standard error.
    """
    lines = list(sample.lines)
    if sample.error > 0 and len(spec.seeds) > 1 and configurations > 1:
        hidden = minimum_detectable_effect(sample.error, len(spec.seeds), configurations)
        seeds = f"{counted(len(spec.seeds), 'seed')} per configuration"
        lines.append(
            f"with {seeds} ({counted(configurations, 'configuration')}), evaluation error alone "
            f"hides improvements below {hidden:.2g} (80% power)"
        )
    print_section("sample", lines)
    for advice in sample.advice:
        _logger.warning("\n%s", advice)


def print_section(heading: str, lines: list[str]) -> None:
    """Print a heading, with lines in a second column."""
    rows = [["", line] for line in lines]
    if rows:
        rows[0][0] = heading
    print_table(["", ""], [[f"{first:<11}", line] for first, line in rows])


def _range(parameter: ParameterSpec) -> str:
    kind = parameter.kind
    options = ", ".join(map(value_text, parameter.options or []))
    if parameter.by is not None:
        (switch,) = parameter.by
        values = [f"{value_text(value)} for {arm}" for arm, value in parameter.by[switch].items()]
        if parameter.has_else:
            values.append(f"else {value_text(parameter.otherwise)}")
        return f"by {switch}: {', '.join(values)}"
    if parameter.kind in ("choice", "value"):
        return f"{kind} {options}"
    bounds = parameter.bounds
    text = f"{kind} {bounds.low:g} to {bounds.high:g}"
    if bounds.step is not None and kind != "logint":
        text += f", step {bounds.step:g}"
        last = (parameter.options or [bounds.high])[-1]
        if last < bounds.high:
            text += f" (up to {last:g}: the step does not divide the range)"
    return text


def _condition(parameter: ParameterSpec) -> str:
    """Return a parameter's ``when`` condition as text; empty if it has a ``by``, whose text already
    states it.
    """
    if parameter.by is not None:
        return ""
    values = {}
    for key, value in parameter.when.items():
        values[key] = ", ".join(map(value_text, value)) if isinstance(value, list) else value
    return parameter_text(values)


def _sections(plan: Plan, spec: SweepSpec, confirm: str) -> Iterator[tuple[str, list[str]]]:
    """Yield headings, each with its lines."""
    devices = f"{counted(plan.gpus_per_trial, 'GPU')}, {counted(plan.cpus_per_trial, 'CPU')}"
    yield "trials", [_trials_text(plan, spec), *_arms_lines(plan, spec, confirm)]
    yield "each", [f"{devices}; {_steps_text(plan)}"]
    yield "machines", [_machines(plan.nodes)]
    yield "at a time", [_slots_text(plan)]
    if plan.disk is not None:
        yield "disk", [_disk_text(plan.disk, plan.free_bytes)]
    elif spec.program.estimates_sizes:
        yield "disk", ["unknown model size; use a local folder instead of a Hub name"]
    if plan.memory is not None:
        yield "memory", list(plan.memory.lines())
    elif plan.gpus_per_trial and spec.program.estimates_sizes:
        yield "memory", ["unknown: the model's config.json is not on this machine"]
    yield "forecast", [_forecast_text(plan, spec)]
    for shortage in plan.short:
        yield "NOT ENOUGH", [shortage]


def _trials_text(plan: Plan, spec: SweepSpec) -> str:
    size = f"{counted(plan.configurations, 'configuration')} x {counted(len(spec.seeds), 'seed')}"
    text = f"{plan.trials}: {size}; sampler {spec.search.sampler}"
    automatic, why = automatic_sampler(spec)
    if spec.search.sampler == automatic:
        text += f", chosen by auto: {why}"
    return text


def _slots_text(plan: Plan) -> str:
    """Return how many trials run at the same time, how many wait, and how many GPUs stay idle."""
    if not plan.slots:
        return (
            "none: a trial needs more resources than this machine has; see --address, "
            "--nodes and --gpus"
        )
    text = f"{counted(plan.slots, 'trial')}; waiting: {plan.waiting}"
    # rounded, because three times 0.3333 of a GPU leaves a remainder
    idle = round(sum(node.gpus for node in plan.nodes) - plan.slots * plan.gpus_per_trial, 2)
    if plan.gpus_per_trial and idle:
        text += f"; idle: {counted(idle, 'GPU')}"
    return text


def _disk_text(disk: Disk, free: int) -> str:
    return (
        f"at most {format_bytes(disk.at_most)} of {format_bytes(free)} free; "
        f"{format_bytes(disk.one_checkpoint)} per checkpoint, "
        f"{format_bytes(disk.ended_trial)} per ended trial"
    )


def _forecast_text(plan: Plan, spec: SweepSpec) -> str:
    if plan.seconds is None and plan.steps is None:
        return f"unknown; {spec.program.forecast_needs}"
    if plan.seconds is None:
        return (
            "unknown: no earlier sweep has measured a training step. Use --step-seconds, or run "
            "this sweep and plan again"
        )
    text = duration(plan.seconds)
    if spec.scheduler.asha or plan.searches_steps:
        text = f"at most {text}"
    if plan.gpu_hours:
        text += f", {plan.gpu_hours:.1f} GPU hours"
    each = f"{plan.trial_seconds:.3g} s per trial"
    if plan.steps is not None:
        each = f"not counting evaluations, at {plan.step_seconds:.3g} s per step"
    return f"{text}, {each} ({plan.step_source})"


def _arms_lines(plan: Plan, spec: SweepSpec, confirm: str) -> list[str]:
    """Return the budget of every arm, and the cost of the confirmation with its command."""
    if spec.search.tune_within is None:
        return []
    tuned = arms(spec)
    budgets = [planned_trials(arm) for arm in tuned.values()]
    each = str(min(budgets))
    if max(budgets) > min(budgets):
        each = f"{min(budgets)} to {max(budgets)}"
    fresh = len(budgets) * ARM_SEEDS
    price = ""
    if plan.trial_seconds is not None and plan.slots:
        price = f", {duration(math.ceil(fresh / plan.slots) * plan.trial_seconds)} more"
    budget = f"{each} tuning trials for each of {len(budgets)} values of {spec.search.tune_within}"
    return [
        f"{budget}; then `{confirm}` runs the best of each on {ARM_SEEDS} fresh "
        f"seeds: {fresh} trials{price}"
    ]


def _steps_text(plan: Plan) -> str:
    if plan.steps is None:
        return "unknown length"
    most = "at most " if plan.searches_steps else ""
    return most + counted(plan.steps, "step")


def _measured(
    earlier: list[SweepRecord],
    is_like: Callable[[Program], bool],
    seconds: Callable[[SweepRecord], list[float]],
) -> tuple[float | None, str]:
    """Return the median seconds from the newest similar sweep with measurements, and the source
    with that sweep's name; None and an empty string if there is no such sweep.
    """
    newest_first = sorted(
        earlier, key=lambda sweep: sweep.folder.space.stat().st_mtime, reverse=True
    )
    for other in newest_first:
        if is_like(other.spec.program):
            measured = seconds(other)
            if measured:
                return statistics.median(measured), f"measured in {other.folder.name}"
    return None, ""


def _trial_seconds(sweep: SweepRecord) -> list[float]:
    """Return the seconds of each complete trial."""
    hours = sweep.device_hours()
    devices = sweep.spec.resources.devices
    complete = [trial for trial in sweep.trials() if trial.state == "COMPLETE"]
    return [3600 * hours.get(trial.name, 0.0) / devices for trial in complete]
