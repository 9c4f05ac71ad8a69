"""Token ids of a model: the ids that end a completion, and the ids that its tokenizer has."""

import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from transformers import AutoConfig, GenerationConfig, PreTrainedTokenizerBase

from loptune.errors import ConfigError
from trainer.config.model import ModelConfig
from trainer.policy.load import LOAD_ERRORS, Source, load_error, model_source

_log = logging.getLogger(__name__)

_GENERATION_CONFIG = "generation_config.json"


def end_token_ids(model: ModelConfig) -> tuple[int, ...]:
    """Return the ids that end a completion according to the model's generation configuration.

    Chat models often list several ids, of which the tokenizer's EOS is one: Llama 3 ends a turn
    with ``<|eot_id|>``, Gemma with ``<end_of_turn>``. Without a ``generation_config.json`` they are
    the ids of ``config.json``, as in transformers.

    Raises:
        MissingError: no such model, or its configuration cannot be read.
        ConfigError: the configuration needs the model's own code without ``trust_remote_code``.
    """
    return _vocabulary(model).end_ids


def embedding_rows(model: ModelConfig) -> int:
    """Return the size of the model's vocabulary: the number of rows of its embedding and of its
    logits. Raises like `end_token_ids`.
    """
    return _vocabulary(model).rows


def unknown_token_ids(tokenizer: PreTrainedTokenizerBase, rows: int) -> tuple[int, ...]:
    """Return the ids below ``rows`` that no token has, ascending.

    Models pad their embedding to a round number of rows. Rows without a token were never trained,
    and no text can contain a token for them.
    """
    known = set(tokenizer.get_vocab().values())
    return tuple(token_id for token_id in range(rows) if token_id not in known)


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, rows: int, model: str) -> None:
    """Raise if a token that prompts can contain has no row in the embedding.

    Tokens for other purposes may be outside of it, such as ``<image_soft_token>`` in Gemma models
    without vision, or an ``unk_token`` that a byte-level tokenizer never produces.

    Raises:
        ConfigError: there are such tokens; the error shows the first one.
    """
    named = set()
    for name, token in tokenizer.special_tokens_map.items():
        if isinstance(token, str) and name not in ("bos_token", "eos_token", "pad_token"):
            named.add(token)
    beyond = {}
    for token, token_id in tokenizer.get_vocab().items():
        if token_id >= rows and token not in named:
            beyond[token_id] = token
    if beyond:
        first = min(beyond)
        raise ConfigError(
            f"the tokenizer of {model} has {len(beyond)} tokens without a row in the model's "
            f"embedding ({rows} rows): {beyond[first]!r} has id {first}",
            "model.name_or_path",
            "resize the model and save both: model.resize_token_embeddings(len(tokenizer)), then "
            "save_pretrained of model and tokenizer",
            key="model.name_or_path",
            code="tokenizer-too-large",
        )


def check_prompts(prompts: Sequence[Sequence[int]], rows: int) -> None:
    """Raise if a prompt contains a token without a row in the embedding.

    Raises:
        ConfigError: there is such a token; the error shows its id.
    """
    for prompt in prompts:
        largest = max(prompt, default=0)
        if largest >= rows:
            raise ConfigError(
                f"a prompt contains token id {largest}, but the model's embedding has {rows} rows",
                "model.name_or_path, data.train, evaluation.sets",
                "remove this token from the data, or resize the model's embedding: "
                "model.resize_token_embeddings(len(tokenizer))",
                key="model.name_or_path",
                code="token-without-row",
            )


class _Vocabulary(NamedTuple):
    """What a model's configuration files say about its token ids."""

    end_ids: tuple[int, ...]  # ids that end a completion
    rows: int  # rows of the embedding and of the logits


def _vocabulary(model: ModelConfig) -> _Vocabulary:
    return _read(
        model_source(model), name=model.name_or_path, trust_remote_code=model.trust_remote_code
    )


@functools.cache
def _read(source: Source, *, name: str, trust_remote_code: bool) -> _Vocabulary:
    """Read the vocabulary of a model once. Errors call the model ``name``.

    Raises:
        MissingError, ConfigError: as in `end_token_ids`.
    """
    model = ModelConfig(name_or_path=name, trust_remote_code=trust_remote_code)
    try:
        config = AutoConfig.from_pretrained(
            source.name, revision=source.revision, trust_remote_code=trust_remote_code
        )
    except LOAD_ERRORS as error:
        raise load_error("config.json", model, error) from error
    try:
        if _has_generation_config(source):
            generation = GenerationConfig.from_pretrained(source.name, revision=source.revision)
        else:
            generation = GenerationConfig.from_model_config(config)
    except LOAD_ERRORS as error:
        raise load_error(_GENERATION_CONFIG, model, error) from error
    rows: int = config.get_text_config().vocab_size
    return _Vocabulary(_valid_ids(generation.eos_token_id, rows), rows)


def _has_generation_config(source: Source) -> bool:
    """Return whether the model has a ``generation_config.json``. Without a connection, the cache
    decides.

    Raises:
        OSError: the Hub did not answer, so nobody knows.
    """
    if Path(source.name).is_dir():
        return (Path(source.name) / _GENERATION_CONFIG).is_file()
    if constants.is_offline_mode():
        cached = try_to_load_from_cache(source.name, _GENERATION_CONFIG, revision=source.revision)
        if cached is None:
            _log.warning(
                "%s: the cache has no generation_config.json; completions end at the EOS tokens "
                "of config.json",
                source.name,
            )
        return isinstance(cached, str)
    try:
        hf_hub_download(source.name, _GENERATION_CONFIG, revision=source.revision)
    except LocalEntryNotFoundError:  # the request failed; a subclass of the next error
        raise
    except EntryNotFoundError:
        return False
    return True


def _valid_ids(given: Any, rows: int) -> tuple[int, ...]:
    """Return the ids of ``eos_token_id`` (None, an id or a list) that have a logit."""
    ids = [given] if isinstance(given, int) else list(given or ())
    return tuple(token_id for token_id in ids if 0 <= token_id < rows)
