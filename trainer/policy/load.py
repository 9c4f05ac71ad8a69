"""Loading the policy: a Hugging Face causal language model and its tokenizer."""

import copy
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar

from loptune.errors import ConfigError, MissingError, UserError, described, first_line, listed
from loptune.files import check_downloaded, json_object
from loptune.yaml_document import nearest
from trainer.config.model import ModelConfig
from trainer.cpu.linear import use_onednn
from trainer.cpu.packed_rows import use_packed_attention
from trainer.hub import hub_is_reachable, unreachable
from trainer.policy import published_tokenizer
from trainer.policy.adapters import SETTINGS_FILE, adapter_base, merge_adapter
from trainer.policy.architectures import MAX_CONFIG_BYTES, local_folder, no_such_folder
from trainer.policy.gguf import ensure_converted, ensure_gguf
from trainer.policy.packaged import PACKAGED, SUFFIX

_log = logging.getLogger(__name__)

_KERNELS = ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention")

# exceptions that transformers raises for missing or truncated files and missing packages
LOAD_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    ImportError,
    SafetensorError,
    RuntimeError,
    TypeError,
    AttributeError,
    ArithmeticError,
    StrictDataclassError,
)

# transformers' progress bars and tensor tables would clutter the run's output
disable_progress_bar()
logging.getLogger("transformers").setLevel(logging.ERROR)


class Source(NamedTuple):
    """Where `from_pretrained` reads the files of a model."""

    name: str  # folder or Hub name
    revision: str | None  # Hub revision of this name; None is the default branch


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Return the model's tokenizer, with a padding token.

    Raises:
        MissingError: unknown folder or Hub name, or no tokenizer in it.
        StorageError: ``tokenizer.json`` is only a Git LFS pointer.
        ConfigError: the tokenizer differs from its published file, has no EOS token, so completions
            could not end, or needs the model's own code without ``trust_remote_code``.
    """
    source = tokenizer_source(config)
    file = Path(source.name) / published_tokenizer.FILE
    if file.is_file():
        check_downloaded(file)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source.name, revision=source.revision, trust_remote_code=config.trust_remote_code
        )
    except Exception as error:  # the tokenizers library raises plain exceptions
        tokenizer = _without_class(source, config, error)
    # transformers creates an empty tokenizer if the file is missing
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise MissingError(
            f"no tokenizer in {config.name_or_path}",
            "model.name_or_path",
            "add its tokenizer.json and tokenizer_config.json: tokenizer.save_pretrained(FOLDER)",
            code="no-tokenizer",
        )
    tokenizer = _as_published(tokenizer, source, config)
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            f"the tokenizer of {config.name_or_path} has no EOS token",
            "model.name_or_path",
            "add eos_token to its tokenizer_config.json",
            code="no-eos",
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _without_class(
    source: Source, config: ModelConfig, error: Exception
) -> PreTrainedTokenizerBase:
    """Return the tokenizer that transformers builds from ``tokenizer.json`` alone, because it
    cannot build the class that the model's files specify.

    Raises:
        UserError: this tokenizer cannot be built either, or the class needs the model's own code.
    """
    failure = load_error("tokenizer", config, error)
    if "trust_remote_code" in str(error):
        raise failure from error
    try:
        plain = PreTrainedTokenizerFast.from_pretrained(source.name, revision=source.revision)
    except Exception:  # the first error names the cause
        raise failure from error
    _log.warning(
        "%s: used tokenizer.json as published, because transformers cannot build the class that "
        "the model's files specify: %s",
        config.name_or_path,
        described(error),
    )
    return plain


def tokenizer_source(config: ModelConfig) -> Source:
    """Return the arguments for the tokenizer's `from_pretrained`: for an adapter without its own
    tokenizer, those of its base model. Raises like `model_source`.
    """
    if not is_adapter(config):
        return model_source(config)
    folder = _folder_of(config)
    if (folder / published_tokenizer.FILE).is_file():
        return Source(str(folder), None)
    return tokenizer_source(base_of(config))


def _as_published(
    tokenizer: PreTrainedTokenizerBase, source: Source, config: ModelConfig
) -> PreTrainedTokenizerBase:
    """Return a tokenizer that agrees with ``tokenizer.json``: the given one, or else the one that
    transformers builds from this file alone.

    Raises:
        ConfigError: both differ from ``tokenizer.json``; the error shows an example.
    """
    published = published_tokenizer.published_tokenizer(source.name, source.revision)
    if published is None:
        return tokenizer
    fault = published_tokenizer.difference(tokenizer, published, published_tokenizer.SAMPLES)
    if fault is None:
        return tokenizer
    plain = PreTrainedTokenizerFast.from_pretrained(source.name, revision=source.revision)
    still = published_tokenizer.difference(plain, published, published_tokenizer.SAMPLES)
    if still is not None:
        raise ConfigError(
            f"the tokenizer of {config.name_or_path} differs from its tokenizer.json: {still}",
            f"{source.name}/{published_tokenizer.FILE}",
            "set tokenizer_class in tokenizer_config.json to PreTrainedTokenizerFast, or save the "
            "tokenizer again with save_pretrained",
            key="model.name_or_path",
            code="tokenizer-not-as-published",
        )
    _log.warning(
        "%s: used tokenizer.json as published, because %s differs from it: with that class, %s",
        config.name_or_path,
        type(tokenizer).__name__,
        fault,
    )
    return plain


def load_policy(
    config: ModelConfig, device: torch.device, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """Load the model on ``device`` with dropout disabled. For an adapter folder, load the base
    model with the adapter merged.

    Only safetensors weights are read. Code from the model folder runs only with
    ``trust_remote_code``.

    Raises:
        MissingError: folder, Hub name or weights do not exist, or the weights are damaged.
        ConfigError: unknown, unsupported or uninstalled attention implementation, a model with its
            own code without ``trust_remote_code``, or an adapter to merge into sharded parameters.
        StorageError: as in `model_source`.
    """
    if is_adapter(config):
        return merge_adapter(
            load_policy(base_of(config), device, dtype), Path(config.name_or_path).expanduser()
        )
    source = model_source(config)
    repository = {"revision": source.revision, "trust_remote_code": config.trust_remote_code}
    options = {"attn_implementation": config.attn_implementation, "dtype": dtype}
    try:
        loading = {
            "use_safetensors": True,
            "ignore_mismatched_sizes": True,
            "output_loading_info": True,
        }
        model, loading_info = AutoModelForCausalLM.from_pretrained(
            source.name, **repository, **options, **loading
        )
        _check_loaded(model, loading_info, config)
    except LOAD_ERRORS as error:
        raise load_error("model", config, error) from error
    _disable_dropout(model)
    _make_savable(model, config)
    _restore_buffers(model)
    is_plain = config.compile == "none" and not config.packing
    if is_plain and device.type == "cpu" and dtype == torch.float32:
        use_onednn(model)
        use_packed_attention(model)
    if config.gradient_checkpointing:
        model.train()  # gradient checkpointing is only active in training mode
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.to(device)


def frozen_copy(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Return a frozen copy that computes exactly the same outputs, using less memory if possible.

    If the model is stored in float32 and autocast computes in a lower ``dtype``, the parameters
    that autocast would cast (linear layers) are stored in ``dtype``, except weights tied to an
    embedding.
    """
    frozen: PreTrainedModel = copy.deepcopy(model).requires_grad_(False)
    embedding_weights = {
        id(module.weight) for module in frozen.modules() if isinstance(module, torch.nn.Embedding)
    }
    for module in frozen.modules():
        if isinstance(module, torch.nn.Linear) and id(module.weight) not in embedding_weights:
            for parameter in module.parameters(recurse=False):
                # buffers such as rotary frequencies stay in float32
                parameter.data = parameter.data.to(dtype)
    return frozen


def is_adapter(config: ModelConfig) -> bool:
    """Return whether the model is an adapter-only folder, such as a checkpoint of a LoRA run."""
    folder = Path(config.name_or_path).expanduser()
    return (folder / SETTINGS_FILE).is_file() and not (folder / "config.json").is_file()


def base_of(config: ModelConfig) -> ModelConfig:
    """Return the configuration of an adapter's base model, which may be an adapter, too.

    Raises:
        MissingError: as in `adapter_base` for this adapter or one below it, or a cycle of adapters.
    """
    base = _next_base(config)
    below = base
    seen = {_folder_of(config)}
    while is_adapter(below):
        if _folder_of(below) in seen:
            raise MissingError(
                "circular adapters: the adapter is its own base model",
                str(_folder_of(below) / SETTINGS_FILE),
                "set base_model_name_or_path to the base model's folder or Hub name",
                code="circular-adapters",
            )
        seen.add(_folder_of(below))
        below = _next_base(below)
    return base


def _next_base(config: ModelConfig) -> ModelConfig:
    name, revision = adapter_base(_folder_of(config))
    return config.model_copy(update={"name_or_path": name, "revision": revision})


def _folder_of(config: ModelConfig) -> Path:
    return Path(config.name_or_path).expanduser().resolve()


def model_source(config: ModelConfig) -> Source:
    """Return the arguments for `from_pretrained`: a folder (built-in tiny model, converted GGUF, or
    any other), or a Hub name with its revision.

    For an adapter folder, return the source of its base model.

    Raises:
        MissingError: the path does not exist, or its config.json is missing or too large; or as in
            `ensure_converted`, `ensure_gguf` or `base_of`.
        StorageError: as in `ensure_converted` or `ensure_gguf`.
    """
    if is_adapter(config):
        return model_source(base_of(config))
    name = config.name_or_path
    if name in PACKAGED:
        return Source(str(ensure_converted(ensure_gguf(name))), None)
    if name.endswith(SUFFIX):
        return Source(str(ensure_converted(Path(name).expanduser())), None)
    folder = local_folder(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise MissingError(
                f"no config.json in {folder}",
                "model.name_or_path",
                "use a folder saved by save_pretrained",
                code="no-config-json",
            )
        _check_sizes(folder)
        return Source(str(folder), None)
    if folder.exists() or name.startswith(("/", "./", "../", "~")) or name.count("/") > 1:
        raise no_such_folder(name)
    hub_is_reachable()
    return Source(name, config.revision)


def _check_sizes(folder: Path) -> None:
    """Raise if a config file is too large to parse quickly."""
    for file in [*folder.glob("*config.json"), *folder.glob("*.jinja")]:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise MissingError(
                f"{file.name} is {file.stat().st_size >> 20} MiB large (limit "
                f"{MAX_CONFIG_BYTES >> 20} MiB)",
                str(file),
                "download the model again, or save it with save_pretrained",
                code="config-too-large",
            )


def check_weights(config: ModelConfig) -> None:
    """Raise early if a local model folder has no intact safetensors weights.

    Raises:
        MissingError: as in `model_source`, or ``*.safetensors`` is missing or truncated.
        StorageError: the files are only Git LFS pointers.
    """
    source = Path(model_source(config).name)
    if not source.is_dir():
        return
    files = sorted(source.glob("*.safetensors"))
    if not files:
        raise MissingError(
            f"no safetensors weights in {source}",
            "model.name_or_path",
            "save the model with save_pretrained(safe_serialization=True)",
            code="no-weights",
        )
    _check_index(source, files)
    for file in files:
        try:
            check_downloaded(file)
            with safe_open(file, framework="pt"):
                pass  # opening validates the header against the file size
        except (SafetensorError, OSError) as error:
            fault = "damaged weights"
            if not os.access(file, os.R_OK):
                fault = "no permission to read the weights"
            raise MissingError(
                f"{fault}: {first_line(error)}",
                str(file),
                "copy or download the file again, or fix its permissions",
                code="weights-damaged",
            ) from None


def _check_index(source: Path, files: Sequence[Path]) -> None:
    """Raise if the weights are split into several files, and some of these files or their index are
    missing.
    """
    index = source / "model.safetensors.index.json"
    if (source / "model.safetensors").is_file():
        return
    if not index.is_file():
        raise MissingError(
            f"no model.safetensors, and no {index.name} that lists the {len(files)} weight files "
            "in the folder",
            str(source),
            f"download {index.name}, or save the model again with save_pretrained",
            code="no-index-of-weights",
        )
    check_downloaded(index)
    weight_map = (json_object(index) or {}).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise MissingError(
            "the file is not a valid index of weights: it has no weight_map",
            str(index),
            "copy or download the file again",
            code="weights-damaged",
        )
    missing = sorted({str(name) for name in weight_map.values()} - {file.name for file in files})
    if missing:
        raise MissingError(
            f"weight files are missing from the folder: {listed(missing, 3)}",
            str(index),
            "download or copy the missing files",
            code="no-weights",
        )


def _check_loaded(model: PreTrainedModel, keys: Mapping[str, Any], config: ModelConfig) -> None:
    """Raise if weights are missing, have wrong shapes, or are not finite. transformers would
    silently initialize missing weights.
    """
    other_config = (
        "add the config.json that belongs to the weights, or save the model again with "
        "save_pretrained"
    )
    missing = sorted(keys["missing_keys"])
    if missing:
        raise _unusable(config, f"lack {listed(missing, 3)}", other_config, "weights-missing")
    shapes = []
    for name, stored, expected in sorted(keys["mismatched_keys"]):
        shapes.append(f"{name} {list(stored)}, expected {list(expected)}")
    if shapes:
        fault = f"have unexpected shapes: {listed(shapes, 3)}"
        raise _unusable(config, fault, other_config, "weights-of-other-shapes")
    not_finite = []
    for name, weight in model.named_parameters():
        if not weight.detach().sum().isfinite():
            not_finite.append(name)
    if not_finite:
        raise _unusable(
            config,
            f"are NaN or infinite in {listed(not_finite, 3)}",
            "use a checkpoint from before training diverged, or download the weights again",
            "weights-not-finite",
        )
    if keys["unexpected_keys"]:
        names = sorted(keys["unexpected_keys"])
        _log.warning(
            "%s: ignored %d weights that %s does not have, for example %s",
            config.name_or_path,
            len(names),
            type(model).__name__,
            names[0],
        )


def _unusable(config: ModelConfig, fault: str, hint: str, code: str) -> MissingError:
    return MissingError(
        f"the weights of {config.name_or_path} {fault}", "model.name_or_path", hint, code=code
    )


def _make_savable(model: PreTrainedModel, config: ModelConfig) -> None:
    """Let the model's generation settings pass transformers' check at saving, which is stricter
    than at loading: the settings of Llama 2 and Vicuna have a temperature without ``do_sample``.
    """
    settings = getattr(model, "generation_config", None)
    if settings is None:
        return
    try:
        settings.validate(strict=True)
    except ValueError:
        settings.do_sample = True  # temperature, top_p and top_k are for sampling
        _log.info(
            "%s: its generation_config.json sets sampling options without do_sample, which "
            "transformers does not save; checkpoints get do_sample: true",
            config.name_or_path,
        )


def _disable_dropout(model: PreTrainedModel) -> None:
    """Set every dropout probability to 0: in dropout layers, and in numbers that modules pass to
    the dropout function, such as ``attention_dropout``.
    """
    # with dropout, the log-probabilities of the first update would not equal the old ones
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def _restore_buffers(model: PreTrainedModel) -> None:
    """Recompute low-precision buffers (rotary frequencies) in float32.

    transformers and vLLM keep them in float32 regardless of the weight dtype, but ZeRO stage 3
    creates every tensor in the weight dtype. In bfloat16, rotary angles are off by up to 0.4%,
    which is 4 radians at position 1,000.
    """
    for module in model.modules():
        computed = []
        for name, buffer in module.named_buffers(recurse=False):
            is_low_precision = buffer.dtype in (torch.bfloat16, torch.float16)
            if name in module._non_persistent_buffers_set and is_low_precision:
                computed.append(name)
        for name in computed:
            module.register_buffer(name, module.get_buffer(name).float(), persistent=False)
        if computed:
            assert not list(module.parameters(recurse=False)), (
                f"{type(module).__name__} would lose its weights"
            )
            model._init_weights(module)


def load_error(what: str, config: ModelConfig, error: Exception) -> UserError:
    """Return the error for a part of a model, such as the tokenizer, that transformers could not
    load. ``what`` is the name of the part.
    """
    text = str(error)
    if not config.trust_remote_code and "trust_remote_code" in text:
        return ConfigError(
            f"{config.name_or_path} contains its own Python code (auto_map in its config files), "
            f"which does not run without your consent",
            "model.trust_remote_code",
            "read the code; if you trust it, set model.trust_remote_code=true",
            key="model.trust_remote_code",
            code="own-code",
        )
    kernel = config.attn_implementation
    if "attn_implementation" in text or (
        isinstance(error, ImportError) and "lash" in kernel and "lash" in text
    ):
        key = "model.attn_implementation"
        if isinstance(error, ImportError):
            return ConfigError(
                f"the attention kernel {kernel} is not installed",
                key,
                f"install its package, or set {key}=sdpa",
                key=key,
                code="kernel-not-installed",
            )
        if kernel in _KERNELS:  # transformers supports it, but this model's code does not
            return ConfigError(
                f"the model's code does not support attention kernel {kernel}: {first_line(error)}",
                key,
                f"set {key}=eager",
                key=key,
                code="kernel-not-supported",
            )
        return ConfigError(
            f"unknown attention implementation {kernel}",
            key,
            nearest(kernel, _KERNELS),
            key=key,
            code="unknown-kernel",
        )
    if not Path(config.name_or_path).expanduser().exists() and not hub_is_reachable():
        return unreachable(what, config.name_or_path)
    cause: BaseException = error
    if isinstance(error, StrictDataclassError) and error.__cause__:
        cause = error.__cause__
    if isinstance(cause, KeyError):
        # a key of config.json, or a name such as a rope_type
        reason = f"transformers does not support {first_line(cause)}, or the model's files lack it"
    else:
        reason = described(cause)
    return MissingError(
        f"cannot load the {what} of {config.name_or_path}: {reason}",
        "model.name_or_path",
        "use a folder with config.json, tokenizer and *.safetensors, a Hub name, or `tiny`",
        code="model-unreadable",
    )
