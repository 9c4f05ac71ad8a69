"""Record which checks at load have passed, so that the trials of a sweep check each distinct model,
tokenizer, data and path only once.

The name of a record is a checksum of everything that the check depends on. A run with a
different checksum runs its own check.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from loptune.files import storage_error, write_atomically
from trainer.config.model import ModelConfig
from trainer.config.schema import TrainConfig
from trainer.load_check.model import Paths
from trainer.policy.load import base_of, is_adapter, model_source, tokenizer_source
from trainer.types import Problem

# Settings that the check does not read. All others are part of the checksum, so that a new setting
# causes one check too many, never one too few.
_NOT_READ = {
    "algorithm",
    "checkpoint",
    "epochs",
    "evaluation",
    "max_hours",
    "max_steps",
    "optim",
    "reward",
    "seed",
    "tracking",
}
_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "peft", "deepspeed", "loptune")
_ENDS = 1 << 20  # bytes read at each end of a file; only files of weights are longer


class PassedChecks:
    """Records of passed checks in a folder that several runs share. Collective.

    Args:
        folder: the shared folder; None to record nothing.
        config: the run's configuration.
        run: the code paths of the loaded run.
        problems: all training problems.
    """

    def __init__(
        self, folder: Path | None, config: TrainConfig, run: Paths, problems: Sequence[Problem]
    ) -> None:
        self._parallel = run.parallel
        self._record: Path | None = None
        if folder is not None and run.parallel.is_main:
            self._record = folder / f"{checksum(config, run, problems)}.txt"

    def run_that_passed(self) -> str | None:
        """Return the folder of a run that has passed the same check, or None."""
        passed = None
        if self._record is not None and self._record.is_file():
            passed = self._record.read_text(encoding="utf-8").strip()
        name: str | None = self._parallel.gather([passed])[0]
        return name

    def add(self, run_dir: Path) -> None:
        """Record that a run has passed the check.

        Raises:
            StorageError: the record cannot be written.
        """
        if self._record is not None:
            try:
                self._record.parent.mkdir(exist_ok=True)
                write_atomically(self._record, f"{run_dir}\n")
            except OSError as error:
                raise storage_error("record the check", self._record, error) from error


def checksum(config: TrainConfig, run: Paths, problems: Sequence[Problem]) -> str:
    """Return the checksum of everything that the check depends on: settings, files of model and
    tokenizer, problems, versions of the libraries, and the device.
    """
    settings = config.model_dump(mode="json", exclude=_NOT_READ)
    model = run.causal_lm
    device = run.parallel.device
    name = torch.backends.cpu.get_cpu_capability()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    depends_on = {
        "settings": settings,
        "longest_completion": config.longest_completion,
        "files": list(_files(config.model)),
        "revision": getattr(model.config, "_commit_hash", None),
        "problems": [(each.prompt, each.prefill, str(each.answer)) for each in problems],
        "versions": _versions(),
        "device": [device.type, name, torch.get_num_threads(), run.parallel.world_size],
        "bound": run.bound,
    }
    return hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()


def _versions() -> dict[str, str]:
    """Return the versions of the libraries that affect the computation."""
    found = {}
    for library in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[library] = importlib.metadata.version(library)
    if "vllm" in sys.modules:  # its distribution has a different name on CPUs
        found["vllm"] = sys.modules["vllm"].__version__
    return found


def _files(config: ModelConfig) -> Iterator[tuple[str, int, int, str]]:
    """Yield path, size, modification time and a checksum of both ends of each file in the folders
    of model, adapters and tokenizer.
    """
    folders = [Path(model_source(config).name), Path(tokenizer_source(config).name)]
    while is_adapter(config):
        folders.append(Path(config.name_or_path).expanduser())
        config = base_of(config)
    for folder in dict.fromkeys(folders):
        if not folder.is_dir():  # a name on the Hub, whose commit identifies the files
            continue
        for file in sorted(folder.iterdir()):
            if file.is_file():
                yield _stamp(file)


def _stamp(file: Path) -> tuple[str, int, int, str]:
    status = file.stat()
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        digest.update(stream.read(_ENDS))
        stream.seek(max(0, status.st_size - _ENDS))
        digest.update(stream.read(_ENDS))
    return str(file), status.st_size, status.st_mtime_ns, digest.hexdigest()
