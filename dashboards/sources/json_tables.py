"""Read tables from JSON: records, JSON Lines, and files of Hugging Face, W&B, Ray and lm-eval."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from dashboards.sources.content import read_text
from loptune.row_files import first_repeated, read_json

# strings for numbers that JSON cannot represent, as W&B and Trackio write them
_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}


def parsed_number(value: Any) -> Any:
    """Return the number for a string such as ``"NaN"``, and any other value unchanged."""
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def read_json_lines(path: Path) -> pd.DataFrame:
    """Return one row per line; nested keys are joined by dots.

    Raises:
        ConfigError: invalid JSON, or a line that is not a JSON object.
    """
    return _rows(read_json(path))


def read_json_table(path: Path) -> pd.DataFrame:
    """Return the rows of a JSON file.

    - a list of records: one row per record
    - ``trainer_state.json``: one row per step of its ``log_history``
    - ``{"columns": ..., "data": ...}`` and mappings of columns, as pandas writes them
    - a single list of records in a mapping, such as ``{"runs": [...]}``: one row per record
    - a mapping of several records with mostly the same keys: one row per record, with its key in
      the column ``name``
    - JSON Lines, such as Ray's ``result.json``: one row per line
    - any other mapping, such as ``all_results.json`` or lm-eval's results: one row

    Raises:
        ConfigError: invalid JSON, or a list of something other than records.
        StorageError: see `read_text`.
        ValueError: the content cannot be converted to rows.
    """
    try:
        content = json.loads(read_text(path), object_pairs_hook=_unique)
    except json.JSONDecodeError:
        return read_json_lines(path)  # its errors name the line
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None
    if isinstance(content, list):
        return read_json_lines(path)
    if not isinstance(content, dict):
        raise ValueError(f"it contains a single {type(content).__name__}, not records")
    return _of_mapping(content)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError(f"duplicate key {first_repeated(name for name, _ in pairs)}")
    return values


def _of_mapping(content: dict[str, Any]) -> pd.DataFrame:
    """Return the rows of a JSON object. Its keys identify the program: see `read_json_table`."""
    history = content.get("log_history")
    if isinstance(history, list):  # trainer_state.json of transformers
        return _one_row_a_step(_rows(history))
    # a table written by W&B or pandas
    if set(content) >= {"columns", "data"} and isinstance(content["data"], list):
        return pd.DataFrame(content["data"], columns=content["columns"])
    if isinstance(content.get("results"), dict) and ("configs" in content or "config" in content):
        return _rows([_lm_eval(content)])
    if not content:
        return _rows([content])

    values = list(content.values())
    records = [value for value in values if _are_records(value)]
    has_mapping = any(isinstance(value, dict) for value in values)
    if len(records) == 1 and not has_mapping:  # the rest is, for example, a version or a date
        return _rows(records[0])
    if len(records) == len(values):
        rows = []
        for name, named in content.items():
            rows += [{"name": name, **record} for record in named]
        return _rows(rows)
    if all(isinstance(value, list) for value in values):
        lengths = {len(value) for value in values}
        if len(lengths) == 1:  # a mapping of columns
            return pd.DataFrame(content)
    if all(isinstance(value, dict) for value in values):
        return _of_mappings(content)
    return _rows([content])


def _of_mappings(content: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """Return the rows of a mapping of mappings: columns, records with a name, or one record."""
    mappings = list(content.values())
    every_key: set[str] = set().union(*mappings)
    shared = set.intersection(*map(set, mappings))
    if all(key.isdigit() for key in every_key):
        return _by_number(content)
    if len(mappings) > 1 and 2 * len(shared) >= len(every_key):
        return _rows([{"name": name, **record} for name, record in content.items()])
    return _rows([content])


def _are_records(value: Any) -> bool:
    return bool(value) and isinstance(value, list) and all(isinstance(row, dict) for row in value)


def _by_number(content: dict[str, Any]) -> pd.DataFrame:
    """Return the rows of a table that pandas wrote as column -> row label -> value. Labels other
    than 0, 1, ..., such as seeds, become the column ``index``.
    """
    table = pd.DataFrame(content)
    if [int(row) for row in table.index] == list(range(len(table))):
        return table.reset_index(drop=True)
    return table.rename_axis("index").reset_index()


def _rows(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    return pd.json_normalize([dict(record) for record in records])


def _one_row_a_step(table: pd.DataFrame) -> pd.DataFrame:
    """Merge the rows of each step: training and evaluation log separate rows, and a final
    evaluation may repeat a row.
    """
    if "step" not in table:
        return table
    return table.groupby("step", as_index=False).last()


def _lm_eval(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return lm-eval's results without samples; its filter "none" is left out of names."""
    results = {}
    for task, values in content["results"].items():
        if isinstance(values, dict):
            results[task] = {name.removesuffix(",none"): value for name, value in values.items()}
    settings = content.get("config")
    row: dict[str, Any] = {"results": results}
    if isinstance(settings, dict):
        row["config"] = settings
    if "model_name" in content:
        row["model_name"] = content["model_name"]
    return row
