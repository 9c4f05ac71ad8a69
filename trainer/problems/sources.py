"""Local files of a data source: one file, the matches of a pattern, or the shards of a split in a
folder.
"""

import glob
import itertools
from pathlib import Path

from loptune.errors import ConfigError, MissingError, listed
from trainer.config.data import DatasetConfig

FROM_HERE = "check the path: it is relative to the current directory"
FILE_TYPES = (".parquet", ".jsonl", ".json", ".csv")
# no Hub dataset name ends with one of these suffixes: such a source is a file
_OTHER_FILE_TYPES = (
    ".txt",
    ".tsv",
    ".xlsx",
    ".xml",
    ".yaml",
    ".yml",
    ".arrow",
    ".pkl",
    ".gz",
    ".zip",
    ".zst",
)
# files that Dataset.save_to_disk and DatasetDict.save_to_disk write into their folder
_SAVED_BY_LIBRARY = ("state.json", "dataset_dict.json")


def is_saved_by_library(folder: Path) -> bool:
    """Return whether a folder was written by ``save_to_disk``."""
    return any((folder / name).is_file() for name in _SAVED_BY_LIBRARY)


def check_source(dataset: DatasetConfig) -> None:
    """Check that the files of a source exist and have a known type, without reading them.

    Raises:
        MissingError: no such file; the error shows the absolute path.
        ConfigError: unsupported file type.
    """
    named_files(dataset)


def named_files(dataset: DatasetConfig) -> list[Path] | None:
    """Return the file that the source names, or the matches of its pattern sorted by name;
    None for a folder, a Hub dataset and generated problems.

    Raises:
        MissingError: no such file; the error shows the absolute path.
        ConfigError: unsupported file type.
    """
    source = dataset.source
    path = Path(source).expanduser()
    if source == "generated" or path.is_dir():
        return None
    if not path.is_file() and glob.has_magic(source):
        return _matches(source, path)
    named = path.suffix in (*FILE_TYPES, *_OTHER_FILE_TYPES) or source.startswith((".", "/", "~"))
    if not named and not path.is_file():
        return None
    _check_type(path)
    if not path.is_file():
        raise MissingError(
            f"data file {source} not found",
            str(path.absolute()),
            FROM_HERE,
            code="data-file-missing",
        )
    return [path]


def split_names(split: str) -> list[str]:
    """Return the splits that a split in the library's notation reads: train and test for
    ``train[:10%]+test``.
    """
    return list(dict.fromkeys(part.partition("[")[0].strip() for part in split.split("+")))


def shards(dataset: DatasetConfig, section: str) -> dict[str, list[Path]] | None:
    """Map each split that the dataset reads to its files in a local folder. The datasets library
    finds the files by name or through the folder's README.md. Return None if it finds no files, or
    files of a type that only the library reads.

    Raises:
        ConfigError: the folder has no files of a split; the error lists its splits.
        Exception: the library cannot use the folder.
    """
    from datasets import load_dataset_builder

    builder = load_dataset_builder(str(Path(dataset.source).expanduser()), dataset.name)
    by_split = builder.config.data_files or {}
    if not by_split:
        return None
    found = {}
    for name in split_names(dataset.split):
        if name not in by_split:
            splits = list(map(str, by_split))
            raise ConfigError(
                f"the folder {dataset.source} has no split {name}; its splits are "
                f"{listed(splits, 5)}",
                f"{section}.split",
                f"set split: {splits[0]}, or pass a pattern of file names, such as "
                f"{dataset.source}/*.jsonl",
                key=f"{section}.split",
                code="no-such-split",
            )
        found[name] = [Path(str(file)) for file in by_split[name]]
    files = itertools.chain.from_iterable(found.values())
    return found if all(file.suffix in FILE_TYPES for file in files) else None


def _matches(source: str, path: Path) -> list[Path]:
    found = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
    files = [file for file in found if file.is_file()]
    for file in files:
        _check_type(file)
    if not files:
        raise MissingError(
            f"no file matches {source}", str(path.absolute()), FROM_HERE, code="data-file-missing"
        )
    return files


def _check_type(path: Path) -> None:
    if path.suffix not in FILE_TYPES:
        raise ConfigError(
            f"unsupported data file type {path.suffix or '(no suffix)'}: use "
            f"{', '.join(FILE_TYPES)}",
            str(path),
            'write the problems as JSON lines: {"prompt": "...", "answer": "..."}',
            code="data-file-type",
        )
