"""Check once before step 1 that a saved checkpoint can be loaded with transformers and peft, and
equals the policy.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from loptune.errors import ConfigError, first_line
from loptune.files import storage_error
from trainer.config.model import ModelConfig
from trainer.load_check import paths
from trainer.load_check.model import Paths, largest_difference
from trainer.load_check.published import load_published
from trainer.load_check.rows import Row
from trainer.policy.adapters import adapter_tensors, has_adapter
from trainer.policy.published_tokenizer import FILE as TOKENIZER_FILE
from trainer.policy.weights import save_weights

FOLDER = ".load-check"  # in the run folder, so that it is on the same disk as the checkpoints
_MAX_BYTES = 1 << 30  # for larger weights, only the settings and the tokenizer are written
_SEED = 0
_SCALE = 0.05  # scale of the random weights used to compare an adapter


def check_saved(
    config: ModelConfig,
    run: Paths,
    tokenizer: Any,
    folder: Path,
    rows: Sequence[Row],
    published: PreTrainedModel | None,
) -> None:
    """Write model and tokenizer as in a checkpoint, load them with transformers and peft, and
    compare tokens and log-probabilities. Collective; rank 0 writes and reads.

    Args:
        config: the model's settings.
        run: the run's paths.
        tokenizer: the tokenizer that checkpoints contain.
        folder: folder to create and to remove again.
        rows: rows to compare.
        published: the published model, on rank 0, if it was loaded. Without it, weights are neither
            written nor compared; nor are the full weights of a large model.

    Raises:
        ConfigError: the checkpoint cannot be written or loaded, or it differs.
        StorageError: the disk is full or not writable.
    """
    model = run.causal_lm
    expected = run.own(rows)
    is_written = run.parallel.gather([published is not None])[0] and (
        has_adapter(model) or 4 * paths.parameter_count(model) < _MAX_BYTES
    )
    weights = run.parallel.weights(model) if is_written else {}
    fault = None
    if run.parallel.is_main:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            _write(folder, model, tokenizer, weights)
            fault = _tokens_fault(folder, tokenizer, rows)
            if is_written and published is not None:
                fault = fault or _weights_fault(config, run, folder, rows, expected, published)
        except OSError as error:
            raise storage_error("write a checkpoint", folder, error) from error
        except Exception as error:  # from transformers' validation, safetensors or the model's code
            fault = f"{type(error).__name__}: {first_line(error)}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    faults = [each for each in run.parallel.gather([fault], after_files=True) if each]
    if faults:
        raise ConfigError(
            f"a checkpoint of {type(model).__name__} differs from the policy: {faults[0]}",
            "model.name_or_path",
            "fix the file in the model's folder that causes this: generation_config.json, "
            "config.json or a tokenizer file",
            key="model.name_or_path",
            code="checkpoint-differs",
        )


def _write(
    folder: Path, model: PreTrainedModel, tokenizer: Any, weights: dict[str, Tensor]
) -> None:
    tokenizer.save_pretrained(folder)
    if weights:
        save_weights(folder, model, weights)
        return
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)


def _tokens_fault(folder: Path, tokenizer: Any, rows: Sequence[Row]) -> str | None:
    """Return the difference between the tokenizer and its saved copy, or None.

    For some model types, transformers replaces parts of ``tokenizer.json``. `trainer.policy.load`
    then builds the tokenizer from this file alone, so both ways to load the copy are tried.
    """
    fault = _text_read_differently(AutoTokenizer.from_pretrained(folder), tokenizer, rows)
    if fault is not None and (folder / TOKENIZER_FILE).is_file():
        plain = PreTrainedTokenizerFast.from_pretrained(folder)
        fault = _text_read_differently(plain, tokenizer, rows)
    return fault


def _text_read_differently(saved: Any, tokenizer: Any, rows: Sequence[Row]) -> str | None:
    for row in rows:
        text = tokenizer.decode(row.prompt)
        if saved.encode(text) != tokenizer.encode(text) or saved.decode(row.prompt) != text:
            return f"its tokenizer reads {text[:60]!r} differently"
    return None


def _weights_fault(
    config: ModelConfig,
    run: Paths,
    folder: Path,
    rows: Sequence[Row],
    expected: Sequence[Tensor],
    published: PreTrainedModel,
) -> str | None:
    """Return the difference between the policy and its saved copy, or None."""
    if has_adapter(run.causal_lm):
        import peft

        loaded: Any = peft.PeftModel.from_pretrained(published, folder)
    else:
        source = config.model_copy(update={"name_or_path": str(folder), "revision": None})
        with run.parallel.unsharded():
            loaded = load_published(source, published.device)
    try:
        actual = paths.plain(loaded.eval(), rows, run.temperature)
    finally:
        if has_adapter(run.causal_lm):
            loaded.unload()
    fault = largest_difference(rows, actual, expected, run.bound)
    if fault is None:
        return None
    return f"its log-probabilities differ by {fault[1]:.3g} nats per token"


@contextmanager
def random_adapter(run: Paths) -> Iterator[None]:
    """Set a new adapter to random weights, the same on all ranks. Its initial weights do not change
    the model's outputs, so a path that ignores the adapter would not be detected.
    """
    generator = torch.Generator().manual_seed(_SEED)
    kept: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for name, tensor in adapter_tensors(run.causal_lm).items():
            if ".lora_B." in name:
                kept.append((tensor, tensor.clone()))
                noise = torch.randn(tensor.shape, generator=generator) * _SCALE
                tensor.copy_(noise.to(tensor))
    run.engine.sync_weights(run.causal_lm)
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, before in kept:
                tensor.copy_(before)
        run.engine.sync_weights(run.causal_lm)
