"""What a sweep would do, before anything starts."""

import math
import shutil
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sweep.cluster import Node, local_node, slots
from sweep.config import SweepSpec
from sweep.parameters import ParameterSpec
from sweep.state import SweepFolder, all_sweeps, read_spec
from sweep.summary import planned_trials, step_seconds
from sweep.table import duration, parameter_text, print_table
from trainer.errors import UserError

TINY_PARAMETERS = 120_000
OPTIMIZER_COPIES = 3  # fp32 weights and Adam's two moments


@dataclass(frozen=True)
class Plan:
    """The size and the price of a sweep."""

    name: str
    configurations: int
    trials: int
    gpus_per_trial: float
    cpus_per_trial: int
    node: Node
    slots: int  # trials at one time
    waiting: int  # trials that wait for the first to end
    steps: int | None  # training steps of a trial
    evaluations: int | None
    checkpoint_bytes: int | None  # of the whole sweep
    free_bytes: int
    step_seconds: float | None
    step_source: str
    seconds: float | None  # of the whole sweep, evaluations not counted
    gpu_hours: float | None


def make_plan(spec: SweepSpec, folder: SweepFolder, cpus: int | None, given_step_seconds: float | None) -> Plan:
    """Work out a plan; starts nothing and imports neither Ray nor torch.

    Args:
        spec: the search space.
        folder: where the sweep would live.
        cpus: CPUs of this machine to use; all if None.
        given_step_seconds: seconds of a training step; measured from earlier sweeps if None.
    """
    node, resources = local_node(cpus), spec.resources
    trials = planned_trials(spec)
    fitting = slots(resources, [node])
    parallel = min(fitting, spec.limits.max_concurrent or fitting, trials)
    seconds_per_step, source = _step_seconds(spec, folder, given_step_seconds)
    steps = spec.base.max_steps
    seconds = gpu_hours = None
    if seconds_per_step is not None and steps is not None and parallel:
        trial_seconds = steps * seconds_per_step
        seconds = math.ceil(trials / parallel) * trial_seconds
        gpu_hours = trials * trial_seconds * resources.gpus_per_trial / 3600
    size = _checkpoint_bytes(spec)
    kept = spec.base.checkpoint.keep_last + spec.base.checkpoint.keep_best
    return Plan(
        name=spec.name,
        configurations=trials // len(spec.seeds),
        trials=trials,
        gpus_per_trial=resources.gpus_per_trial,
        cpus_per_trial=resources.workers_per_trial * resources.cpus_per_worker,
        node=node,
        slots=parallel,
        waiting=trials - parallel,
        steps=steps,
        evaluations=spec.evaluations,
        checkpoint_bytes=None if size is None else size * kept * trials,
        free_bytes=shutil.disk_usage(_existing(folder.runs_dir)).free,
        step_seconds=seconds_per_step,
        step_source=source,
        seconds=seconds,
        gpu_hours=gpu_hours,
    )


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values."""
    return asdict(plan)


def print_plan(plan: Plan, spec: SweepSpec) -> None:
    """Print the resolved space and the plan."""
    rows = [[key, _range(parameter), parameter_text(parameter.when)] for key, parameter in spec.parameters.items()]
    if rows:
        print_table(["parameter", "range", "when"], rows)
    for index, baseline in enumerate(spec.baselines):
        print(f"baseline {index}: {parameter_text(baseline)}")
    print()
    for heading, text in _lines(plan, spec):
        print(f"{heading:<12} {text}")


def _range(parameter: ParameterSpec) -> str:
    kind = parameter.kind
    return f"{kind} {getattr(parameter, 'integer' if kind == 'int' else kind)}"


def _lines(plan: Plan, spec: SweepSpec) -> list[tuple[str, str]]:
    lines = [
        ("trials", f"{plan.trials}: {plan.configurations} configurations x {len(spec.seeds)} seeds"),
        ("each", f"{plan.gpus_per_trial:g} GPUs, {plan.cpus_per_trial} CPUs; {_steps_text(plan)}"),
        ("machine", f"{plan.node.gpus:g} GPUs, {plan.node.cpus:g} CPUs"),
    ]
    if plan.slots:
        lines.append(("at a time", f"{plan.slots} trials; {plan.waiting} wait"))
    else:
        lines.append(("at a time", "none: a trial needs more than this machine has; see --address"))
    if plan.checkpoint_bytes is not None:
        short = "  TOO LITTLE" if plan.checkpoint_bytes > plan.free_bytes else ""
        lines.append(("disk", f"{_size(plan.checkpoint_bytes)} of {_size(plan.free_bytes)} free{short}"))
    if plan.seconds is not None:
        hours = f", {plan.gpu_hours:.1f} GPU hours" if plan.gpu_hours else ""
        lines.append(
            (
                "forecast",
                f"{duration(plan.seconds)}{hours} at {plan.step_seconds:.3g} s a step ({plan.step_source})",
            )
        )
    else:
        lines.append(("forecast", "unknown; say how long a training step takes with --step-seconds"))
    return lines


def _steps_text(plan: Plan) -> str:
    if plan.steps is None:
        return "steps from the size of the data"
    return f"{plan.steps} steps" + (f", {plan.evaluations} evaluations" if plan.evaluations else "")


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


def _checkpoint_bytes(spec: SweepSpec) -> int | None:
    """Bytes of one checkpoint: weights in the training precision plus Adam's state; None for a hub model."""
    name = spec.base.model.name_or_path
    if name == "tiny":
        return TINY_PARAMETERS * 4 * OPTIMIZER_COPIES
    weights = list(Path(name).expanduser().glob("*.safetensors"))
    if not weights:
        return None
    # Weight files hold two bytes a parameter as a rule; the optimizer keeps four-byte numbers.
    return sum(path.stat().st_size for path in weights) * 2 * OPTIMIZER_COPIES


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
