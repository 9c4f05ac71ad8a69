"""What a sweep would do, before anything starts."""

import itertools
import math
import statistics
import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from sweep.record.folder import SweepFolder, all_sweeps, read_spec
from sweep.record.summary import planned_trials, step_seconds
from sweep.record.table import duration, parameter_text
from sweep.space.full import FINALISTS, FRESH_SEEDS, full_space
from sweep.space.parameters import ParameterSpec
from sweep.space.spec import SchedulerSpec, SearchSpec, SweepSpec
from sweep.trials.cluster import Node, slots
from sweep.trials.preflight import trial_memory
from sweep.views.noise import NoiseForecast, forecast_noise, noise_lines
from sweep.views.shortage import Shortage, machine_texts, planned_disk, short_disk, short_machines, short_memory
from trainer.commands.table import PLAIN_WIDTH, print_table
from trainer.config.schema import value_of
from trainer.errors import UserError
from trainer.files import free_bytes
from trainer.policy.memory import Footprint, size_text
from trainer.problems.epochs import training_steps

DECIDE_STEPS = ("max_steps", "epochs", "rollout.prompts_per_step")


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
    evaluations: int | None  # of a trial; of the longest where the sweep searches that
    one_checkpoint_bytes: int | None  # of a trial that runs
    ended_trial_bytes: int | None  # what one leaves
    checkpoint_bytes: int | None  # of the whole sweep at most
    free_bytes: int
    short: list[Shortage]
    memory: Footprint | None  # of each rank of a trial; not of the embedded policy
    step_seconds: float | None
    step_source: str
    seconds: float | None  # of the whole sweep, evaluations not counted
    gpu_hours: float | None
    noise: NoiseForecast | None  # what the seeds can tell apart; None where no earlier sweep measured it
    full: "Plan | None"  # of `sweep confirm --full`, where the space has the section


def make_plan(spec: SweepSpec, folder: SweepFolder, nodes: list[Node], given_step_seconds: float | None) -> Plan:
    """Work out a plan; starts nothing and imports no Ray, and torch only to simulate memory.

    Args:
        spec: the search space.
        folder: where the sweep would live.
        nodes: machines to run on.
        given_step_seconds: seconds of a training step; measured from earlier sweeps if None.
    """
    resources, trials = spec.resources, planned_trials(spec)
    fitting = slots(resources, nodes)
    parallel = min(fitting, spec.limits.max_concurrent or fitting, trials)
    seconds_per_step, source = _step_seconds(spec, folder, given_step_seconds)
    steps = _steps(spec)
    seconds = gpu_hours = None
    if seconds_per_step is not None and steps is not None and parallel:
        trial_seconds = steps * seconds_per_step
        seconds = math.ceil(trials / parallel) * trial_seconds
        gpu_hours = trials * trial_seconds * resources.gpus_per_trial / 3600
    at_a_time = max(1, parallel)
    disk, memory, free = planned_disk(spec, trials, at_a_time), trial_memory(spec), free_bytes(folder.runs_dir)
    short = [*short_machines(resources, nodes), *short_disk(disk, free)]
    if memory is not None:
        short += short_memory(memory, nodes, at_a_time)
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
        evaluations=_evaluations(spec, steps),
        one_checkpoint_bytes=disk.one_checkpoint if disk else None,
        ended_trial_bytes=disk.ended_trial if disk else None,
        checkpoint_bytes=disk.at_most if disk else None,
        free_bytes=free,
        short=short,
        memory=memory,
        step_seconds=seconds_per_step,
        step_source=source,
        seconds=seconds,
        gpu_hours=gpu_hours,
        noise=forecast_noise(spec, folder, trials // len(spec.seeds)),
        full=None if spec.full is None else make_plan(_second_stage(spec), folder, nodes, None),
    )


def _second_stage(spec: SweepSpec) -> SweepSpec:
    """What `sweep confirm --full` would run, as large as it is without further options."""
    return full_space(spec).model_copy(
        update={
            "baselines": [],
            "search": SearchSpec(sampler="random", configurations=FINALISTS + 1),
            "seeds": list(range(FRESH_SEEDS)),
            "scheduler": SchedulerSpec(),
        }
    )


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values."""
    full = None if plan.full is None else as_json(plan.full)
    return {**asdict(plan), "memory": plan.memory and plan.memory.as_json(), "full": full}


def print_space(spec: SweepSpec) -> None:
    """Print the resolved space."""
    rows = [[key, _range(parameter), parameter_text(parameter.when)] for key, parameter in spec.parameters.items()]
    if rows:
        print_table(["parameter", "range", "when"], rows)
    for index, baseline in enumerate(spec.baselines):
        print(f"baseline {index}: {parameter_text(baseline)}")
    print(flush=True)


def print_plan(plan: Plan, spec: SweepSpec) -> None:
    """Print what the sweep would do and take."""
    noise = [("noise", text) for text in noise_lines(plan.noise, spec, plan.configurations)]
    for heading, text in [*noise[:1], *(("", text) for _, text in noise[1:]), *_lines(plan, spec)]:
        _print_wrapped(heading, text)
    if plan.full is not None:
        assert spec.full is not None
        changed = parameter_text(spec.full.overrides)
        then = f"`sweep confirm {spec.name} --full` would train full weights{f': {changed}' if changed else ''}"
        print("\n" + textwrap.fill(then, PLAIN_WIDTH, break_long_words=False, break_on_hyphens=False))
        for heading, text in _lines(plan.full, _second_stage(spec)):
            if heading != "forecast" or plan.full.seconds is not None:  # --step-seconds are those of the search
                _print_wrapped(heading, text)


def _print_wrapped(heading: str, text: str) -> None:
    for line in textwrap.wrap(text, PLAIN_WIDTH - 13, break_long_words=False, break_on_hyphens=False):
        print(f"{heading:<12} {line}")
        heading = ""


def _range(parameter: ParameterSpec) -> str:
    kind = parameter.kind
    return f"{kind} {getattr(parameter, 'integer' if kind == 'int' else kind)}"


def _lines(plan: Plan, spec: SweepSpec) -> list[tuple[str, str]]:
    lines = [
        ("trials", f"{plan.trials}: {plan.configurations} configurations x {len(spec.seeds)} seeds"),
        ("each", f"{plan.gpus_per_trial:g} GPUs, {plan.cpus_per_trial} CPUs; {_steps_text(plan, spec)}"),
        ("machines", ", ".join(machine_texts(plan.nodes))),
    ]
    if plan.slots:
        idle = sum(node.gpus for node in plan.nodes) - plan.slots * plan.gpus_per_trial
        unused = f"; {idle:g} GPUs stay idle" if plan.gpus_per_trial and idle else ""
        lines.append(("at a time", f"{plan.slots} trials; {plan.waiting} wait{unused}"))
    else:
        lines.append(
            ("at a time", "none: a trial needs more than this machine has; see --address, --nodes and --gpus")
        )
    if plan.checkpoint_bytes is None:
        lines.append(("disk", "unknown size of the model; give a folder instead of a hub name"))
    else:
        assert plan.one_checkpoint_bytes is not None and plan.ended_trial_bytes is not None
        of_all = f"at most {size_text(plan.checkpoint_bytes)} of {size_text(plan.free_bytes)} free"
        one, ended = size_text(plan.one_checkpoint_bytes), size_text(plan.ended_trial_bytes)
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
                f"{limit}{duration(plan.seconds)}{hours} at {plan.step_seconds:.3g} s a step ({plan.step_source})",
            )
        )
    else:
        lines.append(("forecast", "unknown; say how long a training step takes with --step-seconds"))
    return lines + [("TOO LITTLE", str(shortage)) for shortage in plan.short]


def _steps(spec: SweepSpec) -> int | None:
    """Training steps of the longest trial, where configuration and search space alone decide them."""
    train = spec.base.data.train
    problems = None
    if len(train) == 1 and train[0].source == "generated":
        problems = min(train[0].size, train[0].limit or train[0].size)
    longest = 0
    for max_steps, epochs, prompts in itertools.product(*(_possible(spec, key) for key in DECIDE_STEPS)):
        if max_steps is not None:
            longest = max(longest, max_steps)
        elif problems is not None:
            longest = max(longest, training_steps(epochs, problems, prompts, spec.base.data.drop_last))
        else:
            return None
    return longest


def _possible(spec: SweepSpec, key: str) -> list[Any]:
    """The values a trial may have at a trainer key; of a numeric range its ends."""
    parameter = spec.parameters.get(key)
    if parameter is None:
        return [value_of(spec.base, key)]
    inactive = [parameter.otherwise if parameter.has_otherwise else value_of(spec.base, key)]
    return [*parameter.extremes, *(inactive if parameter.when else [])]


def _evaluations(spec: SweepSpec, steps: int | None) -> int | None:
    """Evaluations of the longest trial, the one before the first step included."""
    if steps is None:
        return None
    at_start = int(any(_possible(spec, "evaluation.at_start")))
    longest: int = max(math.ceil(steps / every) for every in _possible(spec, "evaluation.every_steps"))
    return at_start + longest


def _searches_steps(spec: SweepSpec) -> bool:
    return any(len(_possible(spec, key)) > 1 for key in DECIDE_STEPS)


def _steps_text(plan: Plan, spec: SweepSpec) -> str:
    if plan.steps is None:
        return "steps from the size of the data"
    most = "at most " if _searches_steps(spec) else ""
    return f"{most}{plan.steps} steps" + (f", {plan.evaluations} evaluations" if plan.evaluations else "")


def _step_seconds(spec: SweepSpec, folder: SweepFolder, given: float | None) -> tuple[float | None, str]:
    if given is not None:
        return given, "given"
    for other in sorted(all_sweeps(folder.runs_dir), key=lambda sweep: sweep.space.stat().st_mtime, reverse=True):
        try:
            before = read_spec(other).base
        except UserError:
            continue
        if (before.model, before.rollout, before.optim) == (spec.base.model, spec.base.rollout, spec.base.optim):
            measured = step_seconds(other)
            if measured:
                return statistics.median(measured), f"measured in {other.name}"
    return None, ""
