"""Memory of a microbatch beyond the held tensors: the real model and head run on tensors without data."""

import json
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from trainer.config.model import LoraConfig
from trainer.policy.adapters import adapter_parameters, add_adapter
from trainer.policy.logprobs import tokens_per_chunk
from trainer.policy.scoring_head import ScoringHead

CAUSAL = "loptune_causal"
# A kernel that gets no mask: transformers leaves it away where it sees that nothing is padded, and that cannot be
# seen of tensors without contents.
AttentionInterface.register(CAUSAL, sdpa_attention_forward)


@dataclass(frozen=True)
class Microbatch:
    """Everything that determines the memory of a forward and backward pass."""

    architecture: str  # config.json
    rows: int
    length: int  # tokens of a row
    stored: torch.dtype  # of the weights; those of an adapter apart
    computed: torch.dtype
    chunk_mb: int | None  # of logits in a chunk [MiB]; None: the device's own choice
    on_gpu: bool
    recomputes: bool  # gradient checkpointing
    stores_scores: bool = False  # attn_implementation eager
    adapter: str = ""  # model.lora as JSON; empty where the weights are trained
    trained: torch.dtype = torch.float32  # of the adapter


@lru_cache(maxsize=64)
def microbatch_bytes(shape: Microbatch) -> int:
    """Most bytes of tensors, weights and kept gradients not counted, that exist at one time.

    The larger of scoring, where entropies are computed, and of an update, whose backward pass hands every gradient
    over as soon as it is whole. Every position is scored, as if prompts were short.
    """
    model, head = _model(shape)
    with FakeTensorMode():
        model._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype)).tie_weights()
        held = [*model.parameters(), *model.buffers()]
        with LiveBytes(held) as live, torch.no_grad():
            _score(shape, model, head, with_entropy=True)
        scoring = live.peak
        for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
            parameter.register_post_accumulate_grad_hook(_hand_over)
        with LiveBytes(held) as live:
            _score(shape, model, head, with_entropy=False).sum().backward()
    most: int = max(scoring, live.peak)
    return most


@lru_cache(maxsize=64)
def adapter_size(architecture: str, adapter: str) -> int:
    """Parameters of an adapter, ``model.lora`` as JSON, of a model, ``config.json``."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**json.loads(architecture)))
    return adapter_parameters(model, LoraConfig.model_validate_json(adapter))


class LiveBytes(TorchDispatchMode):
    """Counts the storages that operations make, from their first tensor to the end of their last."""

    def __init__(self, not_counted: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in not_counted}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation and count what is new among its results."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._remove, key)

    def _remove(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


def _model(shape: Microbatch) -> tuple[Any, ScoringHead]:
    settings = json.loads(shape.architecture)
    config = AutoConfig.for_model(**settings)
    attention = "eager" if shape.stores_scores else CAUSAL
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=shape.stored, attn_implementation=attention).train()
        if shape.adapter:
            add_adapter(model, LoraConfig.model_validate_json(shape.adapter), shape.trained)
    if shape.recomputes:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    vocabulary = config.get_text_config().vocab_size
    chunk = tokens_per_chunk(vocabulary, shape.chunk_mb, shape.on_gpu)
    return model, ScoringHead(model.get_output_embeddings(), 1.0, chunk)


def _score(shape: Microbatch, model: Any, head: ScoringHead, with_entropy: bool) -> Tensor:
    """`LogprobModel.forward` where every position is scored: which ones are is not known without contents."""
    lower = shape.computed != (shape.trained if shape.adapter else shape.stored)
    with torch.autocast("cpu", shape.computed) if lower else nullcontext():
        hidden = model.base_model(
            input_ids=torch.zeros(shape.rows, shape.length, dtype=torch.int64), use_cache=False
        ).last_hidden_state.flatten(0, 1)
        every = torch.arange(len(hidden))
        predicting = hidden.index_select(0, every)
        del hidden
        logprobs: Tensor = head(predicting, every, with_entropy)[0]
    return logprobs


def _hand_over(parameter: Tensor) -> None:
    parameter.grad = None
