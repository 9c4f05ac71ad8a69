"""Row readers for local files and the Hugging Face Hub."""

import contextlib
import csv
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loptune.errors import ConfigError, MissingError, first_line
from loptune.files import check_downloaded
from loptune.row_files import Values, read_csv, read_json
from loptune.yaml_document import nearest
from rewards.limits import memory
from trainer.config.data import DatasetConfig
from trainer.hub import hub_is_reachable
from trainer.problems.sources import (
    FILE_TYPES,
    is_saved_by_library,
    named_files,
    shards,
    split_names,
)

_ABSENT = object()
_FIELDS = ("prompt", "answer", "difficulty", "source")
# Memory limit when reading: bytes per byte of the file plus a minimum (Arrow alone reserves 1 GiB).
# Legitimate files need less.
_MEMORY_PER_FILE_BYTE = 50
_MIN_MEMORY_MIB = 2560


@dataclass(frozen=True)
class Row:
    """A data row with its source and 1-based number."""

    values: Values
    place: str
    number: int

    def where(self, column: str) -> str:
        """Return the row and column for an error message."""
        return f"{self.place}, row {self.number}, column {column}"


def read_rows(dataset: DatasetConfig, section: str = "data.train") -> list[Row]:
    """Read the rows of files or of a Hub dataset, at most ``limit``. ``section`` is the key of the
    dataset in the configuration, which errors name.

    Raises:
        MissingError: the file is missing, unreadable or empty, or the Hub dataset cannot be loaded.
        ConfigError: unsupported file type, no such split, content that `read_csv` or `read_json`
            rejects, or more data than the memory limit allows.
    """
    splits = _local_splits(dataset, section)
    rows = _read_library(dataset) if splits is None else _read_splits(splits, dataset, section)
    limit_mib = _MIN_MEMORY_MIB
    for file in itertools.chain.from_iterable((splits or {}).values()):
        if file.is_file():
            limit_mib += _MEMORY_PER_FILE_BYTE * file.stat().st_size // 2**20
    try:
        # no limit for the library: it memory-maps files, which takes address space but no memory
        with contextlib.nullcontext() if splits is None else memory(limit_mib):
            kept = list(itertools.islice(rows, dataset.limit))
    except MemoryError:
        raise ConfigError(
            f"reading the data needs more than {limit_mib} MiB of memory",
            dataset.source,
            "read fewer rows (limit), or remove rows that decompress to too much data",
            code="data-too-large",
        ) from None
    if not kept:
        raise MissingError(
            "the dataset has no rows",
            dataset.source,
            "use a file with at least one problem",
            code="data-empty",
        )
    return kept


def find_column(
    row: Row, field: str, columns: Mapping[str, str], defaults: Sequence[str]
) -> str | None:
    """Return the column for a field: the configured one, or else the first of ``defaults`` in the
    row; None if the row has none of them. ``columns`` maps fields to configured columns.

    Raises:
        ConfigError: the configured column does not exist.
    """
    if field in columns:
        if _at(row.values, columns[field]) is _ABSENT:
            raise ConfigError(
                f"no column {columns[field]} for {field}; available: "
                f"{', '.join(_column_names(row.values))}",
                row.place,
                nearest(columns[field], _column_names(row.values)),
                code="column-unknown",
            )
        return columns[field]
    return next((column for column in defaults if _at(row.values, column) is not _ABSENT), None)


def require_column(
    row: Row, field: str, columns: Mapping[str, str], defaults: Sequence[str]
) -> str:
    """Return the column like `find_column`, but raise if there is none.

    Raises:
        ConfigError: no column for the field, or the configured column does not exist.
    """
    column = find_column(row, field, columns, defaults)
    if column is None:
        names = _column_names(row.values)
        similar = [name for name in names if name.strip().lower() in defaults]
        example = next(iter([*similar, *row.values]), "NAME")
        if example != example.strip():
            example = f'"{example}"'
        raise ConfigError(
            f"no column for {field} (looked for {', '.join(defaults)}); available: "
            f"{', '.join(names)}",
            row.place,
            f"map it: {{source: {row.place}, columns: {{{field}: {example}}}}} instead of "
            f"{row.place}",
            code="column-missing",
        )
    return column


def value_at(row: Row, column: str) -> Any:
    """Return the value at a dotted column; None for null, NaN, blank text or a missing column."""
    value = _at(row.values, column)
    empty = (isinstance(value, float) and math.isnan(value)) or (
        isinstance(value, str) and not value.strip()
    )
    return None if empty or value is _ABSENT else value


def check_fields(dataset: DatasetConfig) -> None:
    """Raise if ``columns`` maps an unknown field.

    Raises:
        ConfigError: unknown field; the error suggests the nearest one.
    """
    for field in dataset.columns:
        if field not in _FIELDS:
            raise ConfigError(
                f"unknown field {field} in columns; fields: {', '.join(_FIELDS)}",
                f"columns of {dataset.source}",
                nearest(field, _FIELDS),
                code="field-unknown",
            )


def _local_splits(dataset: DatasetConfig, section: str) -> dict[str, list[Path]] | None:
    """Return split -> files to read, or None if the datasets library reads the source. A single
    file, or all files that match a pattern, are used as the split that the dataset asks for.

    Raises:
        MissingError: no such file or folder.
        ConfigError: unsupported file type, or no such split.
    """
    folder = Path(dataset.source).expanduser()
    if not folder.is_dir():
        files = named_files(dataset)
        return None if files is None else {split_names(dataset.split)[0]: files}
    if is_saved_by_library(folder):
        return None
    try:
        return shards(dataset, section)
    except ConfigError:
        raise
    except Exception as error:  # the library raises exceptions of many other libraries
        raise _not_loaded(dataset, error) from error


def _read_splits(
    splits: Mapping[str, Sequence[Path]], dataset: DatasetConfig, section: str
) -> Iterator[Row]:
    """Yield the rows of a split, or of parts of splits in the library's notation, such as
    ``train[:10%]+test``. The library itself would guess types: the answer "007" would become 7.

    Raises:
        ConfigError: the notation is invalid, or as in `read_csv` and `read_json`.
        MissingError: a file cannot be read.
    """
    if dataset.split in splits:
        yield from _read_files(splits[dataset.split])
        return
    from datasets import ReadInstruction

    rows = {name: list(_read_files(files)) for name, files in splits.items()}
    lengths = {name: len(of_split) for name, of_split in rows.items()}
    try:
        parts = ReadInstruction.from_spec(dataset.split).to_absolute(lengths)
    except (ValueError, AssertionError) as error:
        raise ConfigError(
            f"cannot read split {dataset.split} of {dataset.source}: {first_line(error)}",
            f"{section}.split",
            "use the notation of the datasets library, such as split: train[:10%]",
            key=f"{section}.split",
            code="split-invalid",
        ) from error
    for part in parts:
        yield from rows[part.splitname][part.from_ : part.to]


def _read_files(files: Sequence[Path]) -> Iterator[Row]:
    for path in files:
        for number, values in enumerate(_read_file(path), start=1):
            yield Row(values, str(path), number)


def _read_file(path: Path) -> Iterator[Values]:
    # Do not use the datasets library here: it copies the file to a cache, infers types (answer
    # "007" becomes 7), and loses the row number of errors.
    try:
        check_downloaded(path)
        if path.suffix == ".parquet":
            yield from _read_parquet(path)
        elif path.suffix == ".csv":
            yield from read_csv(path)
        else:
            yield from read_json(path)
    except (OSError, csv.Error) as error:
        raise MissingError(
            f"cannot read the data file: {error}",
            str(path),
            "check the file, or download it again",
            code="data-file-unreadable",
        ) from error


def _read_parquet(path: Path) -> Iterator[Values]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            narrow = {}
            for field in file.schema_arrow:
                if pyarrow.types.is_float16(field.type) or pyarrow.types.is_float32(field.type):
                    narrow[field.name] = field.type.to_pandas_dtype()
            # each thread would reserve address space, which is limited here
            for batch in file.iter_batches(batch_size=1024, use_threads=False):
                for values in batch.to_pylist():
                    for name, dtype in narrow.items():
                        values[name] = _as_written(values[name], dtype)
                    yield values
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, MemoryError):
            raise
        raise MissingError(
            f"invalid or truncated parquet file: {error}",
            str(path),
            "download it again",
            code="parquet-invalid",
        ) from error


def _as_written(value: float | None, dtype: type) -> float | None:
    """Return a number of less than double precision with the digits that identify it: 0.1, not
    0.10000000149011612. None stays None.
    """
    return None if value is None else float(str(dtype(value)))


def _read_library(dataset: DatasetConfig) -> Iterator[Row]:
    """Yield the rows of a Hub dataset, or of a folder that only the datasets library reads.

    Raises:
        MissingError: the dataset cannot be loaded.
    """
    hub_is_reachable()  # before importing datasets, which contacts the Hub
    from datasets import load_dataset, load_dataset_builder, load_from_disk

    folder = Path(dataset.source).expanduser()
    try:
        # the library raises exceptions of many other libraries
        rows: Any
        if is_saved_by_library(folder):
            saved = load_from_disk(str(folder))
            rows = saved[dataset.split] if isinstance(saved, dict) else saved
        else:
            options = _options_as_written(
                load_dataset_builder(dataset.source, dataset.name), dataset
            )
            rows = load_dataset(dataset.source, dataset.name, split=dataset.split, **options)
        for number, values in enumerate(rows, start=1):
            yield Row(values, dataset.source, number)
    except Exception as error:
        raise _not_loaded(dataset, error) from error


def _options_as_written(builder: Any, dataset: DatasetConfig) -> dict[str, Any]:
    """Return the options that make the library read CSV files like `read_csv`. By default it
    guesses types: the answer "007" becomes 7 and "NA" becomes empty.
    """
    if builder.name != "csv":
        return {}
    from datasets import Features, Value

    split = re.split(r"[\[+]", dataset.split)[0]  # train, for train[:10%] or train+test
    first: dict[str, Any] = next(iter(builder.as_streaming_dataset(split)), {})
    return {"features": Features(dict.fromkeys(first, Value("string"))), "keep_default_na": False}


def _not_loaded(dataset: DatasetConfig, error: Exception) -> MissingError:
    is_folder = Path(dataset.source).expanduser().is_dir()
    kind = "folder" if is_folder else "dataset"
    hint = "check the Hub name, the subset, the split and the network"
    if is_folder:
        hint = f"pass one of its files ({', '.join(FILE_TYPES)}), or check the split"
    return MissingError(
        f"cannot load the {kind} {dataset.source}, split {dataset.split}: {first_line(error)}",
        f"source {dataset.source}",
        hint,
        code="dataset-not-loaded",
    )


def _at(values: Any, column: str) -> Any:
    if not isinstance(values, Mapping):
        return _ABSENT
    if column in values:
        return values[column]
    head, _, rest = column.partition(".")
    return _at(values.get(head), rest) if rest else _ABSENT


def _column_names(values: Values, prefix: str = "") -> list[str]:
    names: list[str] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            names += _column_names(value, f"{prefix}{name}.")
        else:
            names.append(prefix + name)
    return names
