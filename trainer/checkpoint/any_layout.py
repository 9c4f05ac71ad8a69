"""Read a checkpoint's training state in a different layout than it was written in.

A checkpoint of replicated ranks has full tensors. A checkpoint of ZeRO's ranks has the flat tensors
of each rank, and the metadata of each file has a list of `Fragment` that maps their elements to
elements of the parameters. Both layouts are read element by element, so the values do not change.
"""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel

from loptune.errors import StorageError
from trainer.parallel.fragments import Fragment
from trainer.policy.weights import saved_names, weight_files

FULL_STATE = "training_state.safetensors"
OPTIMIZER = "optimizer/"  # prefix of the optimizer's tensors in the state files
_LAYOUT = "layout"  # metadata key of a state file
_OF_RANK = re.compile(r"training_state-(\d+)-of-(\d+)\.safetensors")
_WEIGHTS = "weights"


def rank_file(rank: int, world_size: int) -> str:
    """Return the name of the state file of a rank with a sharded optimizer."""
    return f"training_state-{rank}-of-{world_size}.safetensors"


def layout_metadata(fragments: Sequence[Fragment]) -> dict[str, str]:
    """Return the metadata of a state file that contains these fragments."""
    return {_LAYOUT: json.dumps([asdict(fragment) for fragment in fragments])}


def recorded_layout(path: Path) -> list[Fragment]:
    """Return the fragments in a rank's state file.

    Raises:
        StorageError: the file has no layout, so its elements cannot be assigned to parameters.
    """
    with safe_open(path, framework="pt") as file:
        layout = (file.metadata() or {}).get(_LAYOUT)
    if layout is None:
        raise StorageError(
            f"{path.name} does not record which weights it contains: an older loptune wrote it",
            str(path),
            "resume with that version, or start a new run from the weights: "
            f"model.name_or_path={path.parent}",
            code="no-layout",
        )
    return [Fragment(**fragment) for fragment in json.loads(layout)]


def open_any_layout(
    folder: Path, model: PreTrainedModel, parameters: Collection[str]
) -> "FullState | ShardedState":
    """Open the training state in a checkpoint, which must have exactly these ``parameters``.

    Raises:
        StorageError: a rank's file is missing or has no layout, or the parameters differ.
    """
    is_full = (folder / FULL_STATE).is_file()
    saved = FullState(folder, model) if is_full else ShardedState(folder)
    different = sorted(saved.parameters ^ set(parameters))
    if different:
        raise StorageError(
            "these parameters are only in the checkpoint or only in the model: "
            f"{', '.join(different[:3])}",
            str(folder),
            "resume with the configuration the run was started with",
            code="checkpoint-does-not-fit",
        )
    return saved


def random_states(folder: Path, rank: int) -> dict[str, Tensor]:
    """Return the random states for a rank: its own, or another rank's if the checkpoint does not
    have its own. Sampling does not depend on them.

    Raises:
        StorageError: a rank's file is missing.
    """
    paths = [folder / FULL_STATE] if (folder / FULL_STATE).is_file() else _all_ranks(folder)
    file = _Tensors(paths[rank % len(paths)])
    return {name: file.full(name) for name in file.names if name.startswith("random/")}


class FullState:
    """The training state of replicated ranks: weights in the model's files, everything else in one
    file.

    ``model`` is the policy, whose parameters have several names in the files if they are tied.
    """

    def __init__(self, folder: Path, model: PreTrainedModel) -> None:
        self._state = _Tensors(folder / FULL_STATE)
        self._weights = _file_of_each(weight_files(folder, model))
        self._saved_as = _first_saved(saved_names(model), self._weights)
        self._keys = _optimizer_keys(self._state.names)

    @property
    def parameters(self) -> set[str]:
        """The names of the saved parameters."""
        return set(self._saved_as)

    def keys(self, parameter: str) -> list[str]:
        """Return the keys of a parameter's optimizer state, such as ``exp_avg``."""
        return self._keys.get(parameter, [])

    def scalar(self, parameter: str, key: str) -> Tensor:
        """Return a number of the optimizer's state, such as the step count."""
        return self._state.full(f"{OPTIMIZER}{parameter}/{key}")

    def elements(self, parameter: str, key: str, start: int, count: int) -> Tensor:
        """Return the elements of a flattened tensor from ``start``, [count]."""
        if key == _WEIGHTS:
            name = self._saved_as[parameter]
            tensor = self._weights[name].full(name)
        else:
            tensor = self._state.full(f"{OPTIMIZER}{parameter}/{key}")
        elements: Tensor = tensor.flatten()[start : start + count]
        return elements


@dataclass(frozen=True)
class _Piece:
    """A fragment in the file of its rank."""

    file: "_Tensors"
    fragment: Fragment


class ShardedState:
    """The training state of ZeRO's ranks, in one file per rank.

    Raises:
        StorageError: a rank's file is missing or has no layout.
    """

    def __init__(self, folder: Path) -> None:
        self._pieces: dict[str, list[_Piece]] = defaultdict(list)
        for path in _all_ranks(folder):
            file = _Tensors(path)
            for fragment in recorded_layout(path):
                self._pieces[fragment.parameter].append(_Piece(file, fragment))

    @property
    def parameters(self) -> set[str]:
        """The names of the saved parameters."""
        return set(self._pieces)

    def keys(self, parameter: str) -> list[str]:
        """Return the keys of a parameter's optimizer state, such as ``exp_avg``."""
        first = self._pieces[parameter][0]
        prefix = f"{OPTIMIZER}{first.fragment.flat}/"
        names = [name for name in first.file.names if name.startswith(prefix)]
        return [key for name in names if (key := name.removeprefix(prefix)) != _WEIGHTS]

    def scalar(self, parameter: str, key: str) -> Tensor:
        """Return a number of the optimizer's state, such as the step count: it is the same for all
        flat tensors, because they are updated together.
        """
        first = self._pieces[parameter][0]
        return first.file.full(f"{OPTIMIZER}{first.fragment.flat}/{key}")

    def elements(self, parameter: str, key: str, start: int, count: int) -> Tensor:
        """Return the elements of a flattened tensor from ``start``, [count], from all files that
        have some of them.
        """
        parts = []
        position = start
        end = start + count
        for piece in sorted(self._pieces[parameter], key=lambda piece: piece.fragment.start):
            fragment = piece.fragment
            until = min(end, fragment.start + fragment.count)
            if fragment.start <= position < until:
                offset = fragment.offset + position - fragment.start
                name = f"{OPTIMIZER}{fragment.flat}/{key}"
                parts.append(piece.file.part(name, offset, until - position))
                position = until
        assert position == end, f"{parameter}: elements {position} to {end} are in no file"
        return torch.cat(parts)


class _Tensors:
    """A safetensors file whose tensors are read on access."""

    def __init__(self, path: Path) -> None:
        self._file: Any = safe_open(path, framework="pt")
        self.names: set[str] = set(self._file.keys())  # type: ignore[no-untyped-call]

    def full(self, name: str) -> Tensor:
        """Return a tensor."""
        tensor: Tensor = self._file.get_tensor(name)
        return tensor

    def part(self, name: str, start: int, count: int) -> Tensor:
        """Return the elements of a flat tensor from ``start``, [count]."""
        part: Tensor = self._file.get_slice(name)[start : start + count]
        return part


def _file_of_each(paths: Sequence[Path]) -> dict[str, _Tensors]:
    """Map the name of each tensor to the file that contains it."""
    files = {}
    for path in paths:
        file = _Tensors(path)
        for name in file.names:
            files[name] = file
    return files


def _first_saved(names: Mapping[str, Sequence[str]], saved: Collection[str]) -> dict[str, str]:
    """Return the name under which each parameter is saved; parameters that are not saved are left
    out.

    ``names`` has the names that a parameter may have in a file, by its name in the model.
    """
    found = {}
    for parameter, possible in names.items():
        for name in possible:
            if name in saved:
                found[parameter] = name
                break
    return found


def _optimizer_keys(names: Collection[str]) -> dict[str, list[str]]:
    """Return the keys of each parameter's optimizer state, from the names
    ``optimizer/PARAMETER/KEY`` in a state file.
    """
    keys: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if name.startswith(OPTIMIZER):
            parameter, key = name.removeprefix(OPTIMIZER).rsplit("/", 1)
            keys[parameter].append(key)
    return keys


def _all_ranks(folder: Path) -> list[Path]:
    """Return the state files of all ranks that wrote a checkpoint.

    Raises:
        StorageError: a rank's file is missing.
    """
    matches = [_OF_RANK.fullmatch(path.name) for path in sorted(folder.iterdir())]
    world_sizes = {int(match[2]) for match in matches if match}
    wanted = [rank_file(rank, size) for size in world_sizes for rank in range(size)]
    missing = [name for name in wanted if not (folder / name).is_file()]
    if len(world_sizes) != 1 or missing:
        raise StorageError(
            f"the checkpoint is missing {', '.join(missing) or FULL_STATE}",
            str(folder),
            "restore the file, or remove this checkpoint to resume from the previous one",
            code="state-missing",
        )
    return [folder / name for name in wanted]
