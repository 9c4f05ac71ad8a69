"""``trainer presets``: the list of the presets, or one resolved with its memory."""

import json
from pathlib import Path
from typing import Any

from trainer.commands.memory import memory_comment
from trainer.commands.table import print_columns
from trainer.config.extends import find_spec, preset_names, variant_names
from trainer.config.schema import dump_config, load_config


def print_preset(name: str, as_json: bool, ranks: int | None, gpu_gb: float | None) -> None:
    """Print a resolved preset as JSON, or as a file for `trainer run` with its memory in comments.

    Args:
        name: with or without ``:VARIANT``.
        as_json: print JSON.
        ranks: of the memory; see `memory_comment`.
        gpu_gb: of one GPU; see `memory_comment`.
    """
    config = load_config(name)
    if as_json:
        print(json.dumps(config.model_dump(mode="json"), indent=2))
    else:
        print(dump_config(config) + memory_comment(config, ranks, gpu_gb), end="")


def print_presets(as_json: bool) -> None:
    """Print all presets: name, first line of their file, variants."""
    rows: list[dict[str, Any]] = [
        {"name": name, "description": _first_comment(find_spec(name).path), "variants": variant_names(name)}
        for name in preset_names()
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    print_columns([{**row, "variants": " ".join(row["variants"])} for row in rows])
    print("One of a preset's variants: trainer run NAME:VARIANT")


def _first_comment(path: Path) -> str:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
