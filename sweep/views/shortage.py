"""What a planned sweep takes of machines, memory and disk, and of which there is too little."""

from collections.abc import Iterator
from dataclasses import dataclass

from sweep.space.spec import ResourcesSpec, SweepSpec
from sweep.trials.cluster import Node, slots
from trainer.policy.memory import Footprint, planned_checkpoint_bytes, size_text


@dataclass(frozen=True)
class Shortage:
    """A resource of which there is too little."""

    resource: str
    needed: str
    present: str

    def __str__(self) -> str:
        return f"{self.resource}: {self.needed} needed, {self.present} there"


@dataclass(frozen=True)
class Disk:
    """Bytes of checkpoints."""

    one_checkpoint: int  # of a trial that runs
    ended_trial: int  # all that one leaves
    at_most: int  # at one time, of the whole sweep


def planned_disk(spec: SweepSpec, trials: int, at_a_time: int) -> Disk | None:
    """What the trials of a sweep take of the disk; None for a model of unknown size."""
    on_gpu, checkpoint = spec.resources.gpus_per_trial > 0, spec.base.checkpoint
    whole = planned_checkpoint_bytes(spec.base, on_gpu)
    weights = planned_checkpoint_bytes(spec.base, on_gpu, weights_only=True)
    if whole is None or weights is None:
        return None
    kept = checkpoint.keep_last + checkpoint.keep_best
    ended = whole * kept if spec.storage.ended_trials == "all" else weights * (1 + checkpoint.keep_best)
    # A new checkpoint is whole before the oldest is removed.
    return Disk(whole, ended, whole * (kept + 1) * at_a_time + ended * (trials - at_a_time))


def short_machines(resources: ResourcesSpec, nodes: list[Node]) -> Iterator[Shortage]:
    """GPUs and CPUs, where they keep a trial from starting."""
    if slots(resources, nodes):
        return
    cpus = resources.workers_per_trial * resources.cpus_per_worker
    most, where = (sum, "on all machines") if resources.placement == "PACK" else (max, "on one machine")
    gpus_there, cpus_there = most(node.gpus for node in nodes), most(node.cpus for node in nodes)
    if resources.gpus_per_trial > gpus_there:
        yield Shortage("GPUs", f"{resources.gpus_per_trial:g} {where}", f"{gpus_there:g}")
    if cpus > cpus_there:
        yield Shortage("CPUs", f"{cpus} {where}", f"{cpus_there:g}")
    if resources.gpus_per_trial <= gpus_there and cpus <= cpus_there:
        needed = f"{resources.gpus_per_trial:g} with {cpus} CPUs {where}"
        yield Shortage("GPUs", needed, ", ".join(machine_texts(nodes)))


def short_memory(memory: Footprint, nodes: list[Node], at_a_time: int) -> Iterator[Shortage]:
    """Memory of a GPU and of the machines, where it does not suffice for the trials that run at one time."""
    if memory.device.on_gpu and memory.margin < 0:
        needed = max(memory.training, memory.sampling)
        yield Shortage("GPU memory", size_text(needed), size_text(memory.device.total_bytes))
    there = [node.memory for node in nodes if node.memory is not None]
    if len(there) == len(nodes) and memory.host * at_a_time > sum(there):
        of = "one trial" if at_a_time == 1 else f"{at_a_time} trials at a time"
        yield Shortage(f"host memory of {of}", size_text(memory.host * at_a_time), size_text(sum(there)))


def short_disk(disk: Disk | None, free: int) -> Iterator[Shortage]:
    """The disk, where it does not suffice."""
    if disk is not None and disk.at_most > free:
        yield Shortage("disk", size_text(disk.at_most), size_text(free))


def machine_texts(nodes: list[Node]) -> Iterator[str]:
    """Each kind of machine in words."""
    for node in dict.fromkeys(nodes):
        count = nodes.count(node)
        yield f"{f'{count} x ' if count > 1 else ''}{node.gpus:g} GPUs and {node.cpus:g} CPUs"
