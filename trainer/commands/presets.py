"""``trainer presets``: list the presets, or print one resolved with its memory estimate."""

import argparse
from pathlib import Path

import psutil

from loptune.files import format_bytes
from loptune.terminal.arguments import count, positive
from loptune.terminal.table import print_table
from trainer.config.extends import find_spec, preset_names, variant_names
from trainer.config.schema import TrainConfig, apply_overrides, dump_config, load_config
from trainer.parallel.gpus import gpu_bytes, visible_gpus
from trainer.planning.memory import GPU_BYTES, Device, footprint

_DEFAULT_RANKS = 4  # with DeepSpeed: the presets were written for four GPUs


def add_presets(parser: argparse.ArgumentParser) -> None:
    """Add ``trainer presets``."""
    parser.add_argument("spec", nargs="?", help="preset[:variant] to print resolved")
    parser.add_argument(
        "--ranks", type=count, help="number of ranks (default: 4 with DeepSpeed, else 1)"
    )
    parser.add_argument(
        "--gpu-gb", type=positive, help="memory of one GPU [GB] (default: this machine's, or 80)"
    )


def carry_out_presets(arguments: argparse.Namespace) -> int:
    """Carry out ``trainer presets``."""
    if not arguments.spec:
        _print_presets()
        return 0
    config = load_config(arguments.spec)
    print(dump_config(config) + memory_comment(config, arguments.ranks, arguments.gpu_gb), end="")
    return 0


def _print_presets() -> None:
    described = {name: _first_comment(find_spec(name).path) for name in preset_names()}
    rows = [[name, text, " ".join(variant_names(name))] for name, text in described.items()]
    print_table(["name", "description", "variants"], rows)
    print("To run a variant: trainer run NAME:VARIANT")


def memory_comment(config: TrainConfig, ranks: int | None, gpu_gb: float | None) -> str:
    """Return the memory estimate as YAML comment lines. ``ranks`` defaults to `_DEFAULT_RANKS` with
    DeepSpeed, else 1.
    """
    ranks = ranks or (_DEFAULT_RANKS if config.parallel.strategy == "deepspeed" else 1)
    memory = footprint(config, ranks, _device(config, gpu_gb))
    if memory is None:
        return (
            f"# memory: unknown, for there is no config.json of {config.model.name_or_path} on "
            "this machine\n"
        )
    lines = [*memory.lines(), _other_checkpointing(config, ranks, gpu_gb)]
    heads = ("memory ", "  ", "  ", "  ")
    return "".join(f"# {head}{line}\n" for head, line in zip(heads, lines, strict=True))


def _other_checkpointing(config: TrainConfig, ranks: int, gpu_gb: float | None) -> str:
    """Return the estimate for the same run with gradient checkpointing switched: on saves memory,
    off saves the recomputation of every layer.
    """
    switched = not config.model.gradient_checkpointing
    other = apply_overrides(config, {"model.gradient_checkpointing": switched})
    memory = footprint(other, ranks, _device(other, gpu_gb))
    assert memory is not None, "the model's size is known"
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
