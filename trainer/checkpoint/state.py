"""The files of a checkpoint: weights, optimizer, random states, progress."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from trainer.checkpoint.any_layout import (
    FULL_STATE,
    OPTIMIZER,
    layout_metadata,
    open_any_layout,
    random_states,
    rank_file,
    recorded_layout,
)
from trainer.checkpoint.on_disk import raise_if_weights_only
from trainer.checkpoint.run_state import RunState
from trainer.parallel.ranks import Parallel
from trainer.policy.weights import save_weights


def stage_training_state(
    model: PreTrainedModel, tokenizer: Any, optimizer: Any, state: RunState, parallel: Parallel
) -> Callable[[Path], None]:
    """Copy the training state to host memory. Return a function that writes the copy to a folder
    while training continues.

    Weights (or adapter) and tokenizer are written in Hugging Face format, optimizer and random
    states as safetensors, and ``state`` as JSON. Rank 0 writes everything that is not sharded; with
    a sharded optimizer every rank writes its shard. Do not use this tokenizer elsewhere during the
    write.
    """
    weights = parallel.weights(model)
    metadata = layout_metadata(parallel.fragments(model, optimizer))
    tensors: dict[str, torch.Tensor] = {}
    if parallel.is_main or parallel.shards_optimizer:
        of_optimizer = parallel.training_tensors(model, optimizer)
        tensors = {f"{OPTIMIZER}{name}": tensor for name, tensor in of_optimizer.items()}
        tensors["random/cpu"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            tensors["random/cuda"] = torch.cuda.get_rng_state()

    def write(folder: Path) -> None:
        if parallel.is_main:
            save_weights(folder, model, weights)
            tokenizer.save_pretrained(folder)
            state.write(folder)
        if tensors:
            save_file(tensors, folder / _state_file(parallel), metadata)

    return write


def load_training_state(
    folder: Path, model: PreTrainedModel, optimizer: Any, parallel: Parallel
) -> RunState:
    """Restore the training state from a checkpoint folder and return its `RunState`.

    The checkpoint may have been written by a different number of ranks or with another strategy:
    weights and optimizer state are restored bit for bit in any case. Collective.

    Raises:
        ConfigError: only the weights were kept.
        StorageError: a rank's file is missing, or the checkpoint does not match the model.
    """
    raise_if_weights_only(folder)
    own = folder / _state_file(parallel)
    fragments = parallel.fragments(model, optimizer)
    if own.is_file() and (own.name == FULL_STATE or recorded_layout(own) == fragments):
        tensors = load_file(own)
        of_optimizer = {
            name.removeprefix(OPTIMIZER): tensor
            for name, tensor in tensors.items()
            if name.startswith(OPTIMIZER)
        }
        parallel.load_training_tensors(folder, model, optimizer, of_optimizer)
    else:
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        saved = open_any_layout(folder, model, trained)
        parallel.load_any_layout(saved, trained, fragments, optimizer)
        tensors = random_states(folder, parallel.rank)
    torch.set_rng_state(tensors["random/cpu"])
    if "random/cuda" in tensors and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(tensors["random/cuda"])
    return RunState.read(folder)


def _state_file(parallel: Parallel) -> str:
    if not parallel.shards_optimizer:
        return FULL_STATE
    return rank_file(parallel.rank, parallel.world_size)
