"""``trainer presets``: list the presets, or print a complete one with its memory estimate."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil

from loptune.files import format_bytes
from loptune.section import Count, Positive
from loptune.terminal.commands import Command, Option
from loptune.terminal.table import print_table
from trainer.config.extends import find_spec, preset_names, variant_names
from trainer.config.schema import TrainConfig, apply_overrides, dump_config, load_config
from trainer.parallel.gpus import gpu_bytes, visible_gpus
from trainer.planning.memory import GPU_BYTES, Device, footprint

_DEFAULT_RANKS = 4  # with DeepSpeed: the presets were written for four GPUs


@dataclass(frozen=True)
class ListedPreset:
    """A line of the list of presets."""

    name: str
    description: str
    variants: list[str]


def presets(
    spec: Annotated[str | None, Option("preset[:variant] to print")] = None,
    *,
    ranks: Annotated[
        Count | None, Option("number of ranks (default: 4 with DeepSpeed, else 1)")
    ] = None,
    gpu_gb: Annotated[
        Positive | None,
        Option("memory of one GPU [GB] (default: the memory of this machine's GPUs, or 80)"),
    ] = None,
) -> str | list[ListedPreset]:
    """List presets, or print one as a complete run file. The file has every key, and ends with the
    memory estimate.

    Raises:
        ConfigError: there is no such preset or variant, or the file is invalid.
        MissingError: there is no such file.
    """
    if spec:
        config = load_config(spec)
        return dump_config(config) + memory_comment(config, ranks, gpu_gb)
    listed = []
    for name in preset_names():
        description = _first_comment(find_spec(name).path)
        listed.append(ListedPreset(name, description, variant_names(name)))
    return listed


def _show_presets(found: str | list[ListedPreset]) -> None:
    if isinstance(found, str):
        print(found, end="")
        return
    rows = [[each.name, each.description, " ".join(each.variants)] for each in found]
    print_table(["name", "description", "variants"], rows)
    print("To run a variant: trainer run NAME:VARIANT")


def memory_comment(config: TrainConfig, ranks: int | None, gpu_gb: float | None) -> str:
    """Return the memory estimate as YAML comment lines. ``ranks`` defaults to `_DEFAULT_RANKS` with
    DeepSpeed, else 1. ``gpu_gb`` [GB] defaults to the memory of this machine's GPUs, or 80.
    """
    ranks = ranks or (_DEFAULT_RANKS if config.parallel.strategy == "deepspeed" else 1)
    memory = footprint(config, ranks, _device(config, gpu_gb))
    if memory is None:
        return (
            f"# memory: unknown, because config.json of {config.model.name_or_path} is not on "
            "this machine\n"
        )
    lines = [*memory.lines(), _other_checkpointing(config, ranks, gpu_gb)]
    heads = ("memory ", "  ", "  ", "  ")
    return "".join(f"# {head}{line}\n" for head, line in zip(heads, lines, strict=True))


def _other_checkpointing(config: TrainConfig, ranks: int, gpu_gb: float | None) -> str:
    """Return the memory estimate for the same run with gradient checkpointing toggled.
    Checkpointing saves memory but recomputes every layer.
    """
    switched = not config.model.gradient_checkpointing
    other = apply_overrides(config, {"model.gradient_checkpointing": switched})
    memory = footprint(other, ranks, _device(other, gpu_gb))
    assert memory is not None, "the model's size is unknown"
    word = "with" if switched else "without"
    return (
        f"{word} gradient checkpointing: {format_bytes(memory.training)} while training, margin "
        f"{format_bytes(memory.margin)}"
    )


def _first_comment(path: Path) -> str:
    first = path.read_text("utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def _device(config: TrainConfig, gpu_gb: float | None) -> Device:
    wanted = config.parallel.device
    if gpu_gb or wanted == "cuda" or (wanted == "auto" and visible_gpus()):
        return Device(True, round(gpu_gb * 1e9) if gpu_gb else gpu_bytes() or GPU_BYTES)
    return Device(False, psutil.virtual_memory().total)


COMMANDS = {
    "presets": Command(
        function=presets, show=_show_presets, fields=None, example="trainer presets kk_3b:lopti"
    )
}
