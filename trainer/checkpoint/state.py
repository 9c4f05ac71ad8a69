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

_OPTIMIZER = "optimizer/"  # prefix of optimizer tensor names


def stage_training_state(
    model: PreTrainedModel, tokenizer: Any, optimizer: Any, state: RunState, parallel: Parallel
) -> Callable[[Path], None]:
    """Copy the training state to host memory. Return a function that writes the copy to a folder
    while training continues.

    Weights (or adapter) and tokenizer are written in Hugging Face format, the rest as safetensors.
    Rank 0 writes everything that is not sharded; with a sharded optimizer every rank writes its
    shard. Do not use this tokenizer elsewhere during the write.
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
    """Restore the training state from a checkpoint folder and return its `RunState`.

    Raises:
        ConfigError: only the weights were kept.
        StorageError: the checkpoint was written with a different number of ranks, or does not match
        the model.
    """
    raise_if_ended(folder)
    path = folder / _state_file(parallel)
    if not path.is_file():
        files = sorted(file.name for file in folder.glob("training_state*.safetensors"))
        raise StorageError(
            f"no {path.name} in the checkpoint, only {', '.join(files) or 'no training state'}",
            str(folder),
            "resume with the number of ranks and the parallel.* settings of the original run",
            code="other-ranks",
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
