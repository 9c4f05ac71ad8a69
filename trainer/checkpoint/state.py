"""The files of a checkpoint: weights, optimizer, random states, progress."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from trainer.checkpoint.files import raise_if_ended
from trainer.checkpoint.run_state import RunState
from trainer.errors import StorageError
from trainer.parallel.ranks import Parallel
from trainer.policy.weights import save_weights

_OPTIMIZER = "optimizer/"  # before the names of its tensors


def stage_training_state(
    model: PreTrainedModel, tokenizer: Any, optimizer: Any, state: RunState, parallel: Parallel
) -> Callable[[Path], None]:
    """Copy what training changes to host memory; returns what writes it into a folder while
    training goes on.

    Weights or adapter and tokenizer are written in Hugging Face's formats, the rest as safetensors.
    Rank 0 writes what the ranks have in common; where the optimizer's state is in parts, each
    writes its own. Nothing else may use the tokenizer meanwhile.
    """
    weights = parallel.weights(model)
    tensors: dict[str, torch.Tensor] = {}
    if parallel.is_main or parallel.shards_optimizer:
        of_optimizer = parallel.training_tensors(model, optimizer)
        tensors = {f"{_OPTIMIZER}{name}": tensor for name, tensor in of_optimizer.items()}
        tensors["random/cpu"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            tensors["random/cuda"] = torch.cuda.get_rng_state()

    def write(folder: Path) -> None:
        if parallel.is_main:
            save_weights(folder, model, weights)
            tokenizer.save_pretrained(folder)
            state.write(folder)
        if tensors:
            save_file(tensors, folder / _state_file(parallel))

    return write


def load_training_state(
    folder: Path, model: PreTrainedModel, optimizer: Any, parallel: Parallel
) -> RunState:
    """Restore what `stage_training_state` copied; returns its ``state``.

    Raises:
        ConfigError: only the weights were kept.
        StorageError: the checkpoint was written by another number of ranks, or does not fit the
            model.
    """
    raise_if_ended(folder)
    path = folder / _state_file(parallel)
    if not path.is_file():
        files = sorted(file.name for file in folder.glob("training_state*.safetensors"))
        raise StorageError(
            f"no {path.name} in the checkpoint, only {', '.join(files) or 'no training state'}",
            str(folder),
            "resume with the ranks and parallel.* settings that wrote it",
        )
    tensors = load_file(path)
    of_optimizer = {
        name.removeprefix(_OPTIMIZER): tensor
        for name, tensor in tensors.items()
        if name.startswith(_OPTIMIZER)
    }
    parallel.load_training_tensors(folder, model, optimizer, of_optimizer)
    torch.set_rng_state(tensors["random/cpu"])
    if "random/cuda" in tensors and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(tensors["random/cuda"])
    return RunState.read(folder)


def _state_file(parallel: Parallel) -> str:
    if not parallel.shards_optimizer:
        return "training_state.safetensors"
    return f"training_state-{parallel.rank}-of-{parallel.world_size}.safetensors"
