"""The plan of a sweep: size, price and shortages, worked out before anything starts."""

import itertools
import math
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from sweep.record.noise import NoiseForecast, forecast_noise, noise_lines
from sweep.record.sweep_record import SweepRecord, planned_trials, readable_sweeps
from sweep.record.table import duration, parameter_text
from sweep.space.arms import ARM_SEEDS, arms
from sweep.space.parameters import ParameterSpec
from sweep.space.points import searched_values
from sweep.space.spec import SweepSpec
from sweep.trials.cluster import Node, check_fit, node_text, slots
from sweep.trials.preflight import trial_memory
from trainer.config.schema import value_of
from trainer.errors import MissingError
from trainer.files import free_bytes
from trainer.planning.memory import Footprint, planned_checkpoint_bytes, size_text
from trainer.problems.sampler import training_steps
from trainer.shell.table import counted, print_table

_DECIDE_STEPS = ("max_steps", "epochs", "rollout.prompts_per_step")


@dataclass(frozen=True)
class Disk:
    """Bytes of checkpoints."""

    one_checkpoint: int  # of a trial that runs
    ended_trial: int  # all that one leaves
    at_most: int  # at one time, of the whole sweep


@dataclass(frozen=True)
class Plan:
    """The size and the price of a sweep."""

    name: str
    configurations: int
    trials: int
    gpus_per_trial: float
    cpus_per_trial: int
    nodes: list[Node]
    slots: int  # trials at one time
    waiting: int  # trials that wait for the first to end
    steps: int | None  # training steps of a trial; of the longest where the sweep searches them
    disk: Disk | None  # None for a model of unknown size
    free_bytes: int
    short: list[str]  # shortages
    memory: Footprint | None  # of each rank of a trial; not of the built-in tiny model
    step_seconds: float | None
    step_source: str  # where step_seconds come from, or why there are none
    seconds: float | None  # of the whole sweep, evaluations not counted
    gpu_hours: float | None
    noise: NoiseForecast | None  # what the seeds can tell apart; None where no earlier sweep measured it


def make_plan(sweep: SweepRecord, nodes: list[Node], given_step_seconds: float | None) -> Plan:
    """Work out a plan; starts nothing and imports neither Ray nor torch.

    Seconds of a training step are those of sweeps on record, this one's first trials included, unless given.
    """
    spec, folder, trials = sweep.spec, sweep.folder, sweep.planned
    resources, earlier = spec.resources, list(readable_sweeps(folder.runs_dir))
    fitting = slots(resources, nodes)
    parallel = min(fitting, spec.limits.max_concurrent or fitting, trials)
    seconds_per_step, source = _step_seconds(spec, earlier, given_step_seconds)
    steps = _steps(spec)
    seconds = gpu_hours = None
    if seconds_per_step is not None and steps is not None and parallel:
        trial_seconds = steps * seconds_per_step
        seconds = math.ceil(trials / parallel) * trial_seconds
        gpu_hours = trials * trial_seconds * resources.gpus_per_trial / 3600
    at_a_time = max(1, parallel)
    disk, memory, free = _planned_disk(spec, trials, at_a_time), trial_memory(spec), free_bytes(folder.runs_dir)
    return Plan(
        name=spec.name,
        configurations=trials // len(spec.seeds),
        trials=trials,
        gpus_per_trial=resources.gpus_per_trial,
        cpus_per_trial=resources.workers_per_trial * resources.cpus_per_worker,
        nodes=nodes,
        slots=parallel,
        waiting=trials - parallel,
        steps=steps,
        disk=disk,
        free_bytes=free,
        short=[*_short_machines(spec, nodes), *_short_disk(disk, free), *short_memory(memory, nodes, at_a_time)],
        memory=memory,
        step_seconds=seconds_per_step,
        step_source=source,
        seconds=seconds,
        gpu_hours=gpu_hours,
        noise=forecast_noise(spec, earlier, trials // len(spec.seeds)),
    )


def _planned_disk(spec: SweepSpec, trials: int, at_a_time: int) -> Disk | None:
    on_gpu, checkpoint = spec.resources.gpus_per_trial > 0, spec.base.checkpoint
    whole = planned_checkpoint_bytes(spec.base, on_gpu)
    weights = planned_checkpoint_bytes(spec.base, on_gpu, weights_only=True)
    if whole is None or weights is None:
        return None
    kept = checkpoint.keep_last + checkpoint.keep_best
    ended = weights * (1 + checkpoint.keep_best)
    # A new checkpoint is whole before the oldest is removed.
    return Disk(whole, ended, whole * (kept + 1) * at_a_time + ended * (trials - at_a_time))


def _short_machines(spec: SweepSpec, nodes: list[Node]) -> Iterator[str]:
    try:
        check_fit(spec.resources, nodes)
    except MissingError as error:
        yield error.what


def _short_disk(disk: Disk | None, free: int) -> Iterator[str]:
    if disk is not None and disk.at_most > free:
        yield f"disk: {size_text(disk.at_most)} needed, {size_text(free)} there"


def short_memory(memory: Footprint | None, nodes: list[Node], at_a_time: int) -> Iterator[str]:
    """Shortages of memory, of a GPU and of the machines, for the trials that run at one time."""
    if memory is None:
        return
    if memory.device.on_gpu and memory.margin < 0:
        needed = max(memory.training, memory.sampling)
        yield f"GPU memory: {size_text(needed)} needed, {size_text(memory.device.total_bytes)} there"
    there = [node.memory for node in nodes if node.memory is not None]
    if len(there) == len(nodes) and memory.host * at_a_time > sum(there):
        of = "one trial" if at_a_time == 1 else f"{at_a_time} trials at a time"
        yield f"host memory of {of}: {size_text(memory.host * at_a_time)} needed, {size_text(sum(there))} there"


def _machines(nodes: list[Node]) -> str:
    counts = {node: nodes.count(node) for node in nodes}
    return ", ".join(f"{f'{count} x ' if count > 1 else ''}{node_text(node)}" for node, count in counts.items())


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values."""
    return {**asdict(plan), "memory": plan.memory and plan.memory.as_json()}


def print_space(spec: SweepSpec) -> None:
    """Print the resolved space."""
    if spec.parameters:
        rows = [[key, _range(p), parameter_text(p.when)] for key, p in spec.parameters.items()]
        print_table(["parameter", "range", "when"], rows)
    for index, baseline in enumerate(spec.baselines):
        print(f"baseline {index}: {parameter_text(baseline)}")
    print(flush=True)


def print_plan(plan: Plan, spec: SweepSpec) -> None:
    """Print the plan."""
    print_section("noise", noise_lines(plan.noise, spec, plan.configurations))
    for heading, text in _lines(plan, spec):
        print_section(heading, [text])


def print_section(heading: str, lines: list[str]) -> None:
    """Print a heading, and lines in a column beside it."""
    for index, line in enumerate(lines):
        print_table(["", ""], [[f"{'' if index else heading:<11}", line]])


def _range(parameter: ParameterSpec) -> str:
    kind = parameter.kind
    if parameter.by is not None:
        return f"by {next(iter(parameter.by))}: {', '.join(map(str, parameter.options or []))}"
    if parameter.kind in ("choice", "value"):
        return f"{kind} {', '.join(map(str, parameter.options or []))}"
    low, high, step = parameter.bounds
    return f"{kind} {low:g} to {high:g}" + (f", step {step:g}" if step else "")


def _lines(plan: Plan, spec: SweepSpec) -> list[tuple[str, str]]:
    size = f"{counted(plan.configurations, 'configuration')} x {counted(len(spec.seeds), 'seed')}"
    devices = f"{counted(plan.gpus_per_trial, 'GPU')}, {counted(plan.cpus_per_trial, 'CPU')}"
    lines = [
        ("trials", f"{plan.trials}: {size}"),
        *_arms_lines(plan, spec),
        ("each", f"{devices}; {_steps_text(plan, spec)}"),
        ("machines", _machines(plan.nodes)),
    ]
    if plan.slots:
        idle = sum(node.gpus for node in plan.nodes) - plan.slots * plan.gpus_per_trial
        unused = f"; {counted(idle, 'GPU')} stay{'s' * (idle == 1)} idle" if plan.gpus_per_trial and idle else ""
        wait = f"{plan.waiting} wait{'s' * (plan.waiting == 1)}"
        lines.append(("at a time", f"{counted(plan.slots, 'trial')}; {wait}{unused}"))
    else:
        lines.append(
            ("at a time", "none: a trial needs more than this machine has; see --address, --nodes and --gpus")
        )
    if plan.disk is None:
        lines.append(("disk", "unknown size of the model; give a folder instead of a hub name"))
    else:
        of_all = f"at most {size_text(plan.disk.at_most)} of {size_text(plan.free_bytes)} free"
        one, ended = size_text(plan.disk.one_checkpoint), size_text(plan.disk.ended_trial)
        lines.append(("disk", f"{of_all}; checkpoints of {one}, and {ended} of a trial that has ended"))
    if plan.memory is not None:
        lines += [("" if index else "memory", line) for index, line in enumerate(plan.memory.lines())]
    elif plan.gpus_per_trial:
        lines.append(("memory", "unknown: no config.json of the model on this machine"))
    if plan.steps is None:
        lines.append(("forecast", "unknown; say how many steps a trial has with trainer.max_steps=N"))
    elif plan.seconds is not None:
        shorter = spec.scheduler.asha or spec.scheduler.median or _searches_steps(spec)
        limit = "at most " if shorter else ""
        hours = f", {plan.gpu_hours:.1f} GPU hours" if plan.gpu_hours else ""
        lines.append(
            (
                "forecast",
                f"{limit}{duration(plan.seconds)}{hours}, evaluations on top, at {plan.step_seconds:.3g} s a step "
                f"({plan.step_source})",
            )
        )
    else:
        lines.append(
            (
                "forecast",
                "unknown: no sweep has timed a training step. Give --step-seconds, or run this sweep and plan again",
            )
        )
    return lines + [("TOO LITTLE", shortage) for shortage in plan.short]


def _arms_lines(plan: Plan, spec: SweepSpec) -> list[tuple[str, str]]:
    """The budget of every arm, and the price of its best on fresh seeds."""
    if spec.search.tune_within is None:
        return []
    budgets = [planned_trials(arm) for arm in arms(spec).values()]
    each = f"{min(budgets)}" if len(set(budgets)) == 1 else f"{min(budgets)} to {max(budgets)}"
    fresh = len(budgets) * ARM_SEEDS
    price = ""
    if plan.step_seconds is not None and plan.steps is not None and plan.slots:
        price = f", {duration(math.ceil(fresh / plan.slots) * plan.steps * plan.step_seconds)} more"
    told = f"{each} trials to tune each of {len(budgets)} values of {spec.search.tune_within}"
    return [("", f"{told}; then `sweep confirm {spec.name}`: the best of each x {ARM_SEEDS} seeds, {fresh}{price}")]


def _steps(spec: SweepSpec) -> int | None:
    """Training steps of the longest trial, where configuration and search space alone decide them."""
    train = spec.base.data.train
    problems = None
    if len(train) == 1 and train[0].source == "generated":
        problems = min(train[0].size, train[0].limit or train[0].size)
    longest = 0
    for max_steps, epochs, prompts in itertools.product(*(possible(spec, key) for key in _DECIDE_STEPS)):
        if max_steps is not None:
            longest = max(longest, max_steps)
        elif problems is not None:
            longest = max(longest, training_steps(epochs, problems, prompts, spec.base.data.drop_last))
        else:
            return None
    return longest


def possible(spec: SweepSpec, key: str) -> list[Any]:
    """The values a trial may have at a trainer key; of a numeric range its ends."""
    parameter, values = spec.parameters.get(key), searched_values(spec, key)
    if parameter is None or not parameter.when:
        return values
    return [*values, parameter.otherwise if parameter.has_otherwise else value_of(spec.base, key)]


def _searches_steps(spec: SweepSpec) -> bool:
    return any(len(possible(spec, key)) > 1 for key in _DECIDE_STEPS)


def _steps_text(plan: Plan, spec: SweepSpec) -> str:
    if plan.steps is None:
        return "steps from the size of the data"
    most = "at most " if _searches_steps(spec) else ""
    return most + counted(plan.steps, "step")


def _step_seconds(spec: SweepSpec, earlier: list[SweepRecord], given: float | None) -> tuple[float | None, str]:
    if given is not None:
        return given, "given"
    for other in sorted(earlier, key=lambda sweep: sweep.folder.space.stat().st_mtime, reverse=True):
        before = other.spec.base
        if (before.model, before.rollout, before.optim) == (spec.base.model, spec.base.rollout, spec.base.optim):
            measured = other.step_seconds()
            if measured:
                return statistics.median(measured), f"measured in {other.folder.name}"
    return None, ""
