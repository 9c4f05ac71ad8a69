"""Weight sync to a vLLM engine, and its verification."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from loptune.errors import EngineError
from trainer.policy.adapters import base_parameters
from trainer.rollouts.engine import PROMPT_OPTIONS

MAX_CHECK_TOKENS = 512  # maximum length of the check prompt
_CHECK_TOKENS = 32  # length of the synthetic check prompt
# Maximum mean |difference| of log-probabilities in the weight check [nats]. Correct implementations
# differ only by rounding: 1e-5 in float32, 0.05 in bfloat16. A missing weight causes several nats,
# because the engine starts with dummy weights.
_CHECK_BOUNDS = {"float32": 1e-2, "bfloat16": 0.5}


def named_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, full tensor) pairs, one parameter at a time, with the names and layout of the
    published checkpoint, which vLLM expects.

    Tied parameters are yielded once, and adapters are merged into their layers' weights. Parameters
    partitioned by ZeRO-3 are gathered one by one, so all ranks must iterate together.
    """
    for base in base_parameters(model):
        if hasattr(base.parameter, "ds_id"):
            from deepspeed.runtime.zero import GatheredParameters

            with GatheredParameters(base.parts):
                # clone: the receiver may keep the tensor until its layer is complete
                weight = base.merged().clone()
        else:
            weight = base.merged()
        yield from as_published(model, base.name, weight)


def as_published(model: PreTrainedModel, name: str, weight: Tensor) -> Iterable[tuple[str, Tensor]]:
    """Return the names and tensors of a parameter in the published files. They differ if
    transformers fuses parameters at loading, such as the experts of a layer.
    """
    if model not in _CONVERTED:
        _CONVERTED[model] = _converted(model)
    if name not in _CONVERTED[model]:
        return [(name, weight)]
    tensors: dict[str, Tensor] = revert_weight_conversion(model, {name: weight})
    return tensors.items()


# Parameters whose published form differs, by model. A query to transformers takes a millisecond per
# parameter, and weights are sent at every step.
_CONVERTED: WeakKeyDictionary[PreTrainedModel, frozenset[str]] = WeakKeyDictionary()


def _converted(model: PreTrainedModel) -> frozenset[str]:
    """Return the names of the parameters that differ from the published files."""
    placeholders = {}
    for base in base_parameters(model):
        shape = getattr(base.parameter, "ds_shape", base.parameter.shape)  # partitioned by ZeRO-3
        placeholders[base.name] = torch.empty(shape, device="meta")
    published = revert_weight_conversion(model, dict(placeholders))
    return frozenset(
        name for name, tensor in placeholders.items() if published.get(name) is not tensor
    )


def load_weights(llm: Any, model: PreTrainedModel) -> None:
    """Replace all weights of the engine and reset its prefix cache.

    Raises:
        RuntimeError: the prefix cache is in use.
    """
    with torch.no_grad():
        llm.collective_rpc(_prepare_worker)
        llm.collective_rpc("reload_weights", kwargs={"weights_iterator": named_weights(model)})
        llm.collective_rpc(_repack_worker)
    if llm.reset_prefix_cache() is False:
        raise RuntimeError("the prefix cache of the old weights is still in use")


def _prepare_worker(worker: Any) -> None:
    """Call `pack_reloaded_experts` in a worker."""
    from trainer.rollouts.vllm.receiver import pack_reloaded_experts  # imports vLLM

    pack_reloaded_experts()


def _repack_worker(worker: Any) -> None:
    """Call `repack_output_embedding` on a worker's model."""
    from trainer.rollouts.vllm.receiver import repack_output_embedding  # imports vLLM

    repack_output_embedding(worker.model_runner.get_model())


def check_synced_weights(
    engine_logprobs: Callable[[list[int]], Tensor],
    model: nn.Module,
    dtype: str,
    prompt: Sequence[int] = (),
) -> float:
    """Return the mean |difference| of engine and policy log-probabilities on a prompt [nats].

    ``engine_logprobs`` maps tokens [n] to the log-probabilities of all but the first [n - 1].
    Synthetic tokens replace a prompt of fewer than two tokens. Rounding differences are larger on
    them than on real text.

    Raises:
        EngineError: the difference exceeds rounding or is NaN, so the sampling policy would not be
            the trained policy.
    """
    token_ids = list(prompt[-MAX_CHECK_TOKENS:])
    if len(token_ids) < 2:
        vocabulary = model.get_input_embeddings().num_embeddings  # type: ignore[operator]
        stride = max(1, vocabulary // _CHECK_TOKENS) | 1
        token_ids = [(3 + stride * i) % vocabulary for i in range(_CHECK_TOKENS)]
    theirs = engine_logprobs(token_ids)
    ours = _policy_logprobs(model, token_ids, dtype)
    difference = float((theirs - ours).abs().mean())
    if not difference <= _CHECK_BOUNDS[dtype]:
        raise EngineError(
            "the vLLM engine disagrees with the policy after a weight synchronization: the "
            f"log-probabilities of {len(token_ids) - 1} tokens differ by {difference:.3g} "
            f"nats on average (limit for {dtype}: {_CHECK_BOUNDS[dtype]:g})",
            "rollout.engine",
            "weight sync to this vLLM version does not work for this model: use "
            "rollout.engine=transformers",
            code="weights-differ",
        )
    return difference


def engine_logprobs(llm: Any, token_ids: list[int]) -> Tensor:
    """Return a colocated engine's log-probabilities of all tokens but the first, [n - 1]."""
    from vllm import SamplingParams

    prompt = {"prompt_token_ids": token_ids}
    params = SamplingParams(**PROMPT_OPTIONS)
    [output] = llm.generate([prompt], params, use_tqdm=False)
    pairs = zip(token_ids[1:], output.prompt_logprobs[1:], strict=True)
    return torch.tensor([entry[token_id].logprob for token_id, entry in pairs])


@torch.no_grad()
def _policy_logprobs(model: nn.Module, token_ids: list[int], dtype: str) -> Tensor:
    device = next(model.parameters()).device
    input_ids = torch.tensor([token_ids], device=device)
    with torch.autocast(device.type, getattr(torch, dtype), enabled=dtype != "float32"):
        logits = model(input_ids=input_ids, use_cache=False).logits[0, :-1]
    logprobs: Tensor = logits.float().log_softmax(dim=-1).gather(-1, input_ids[0, 1:, None])[:, 0]
    return logprobs.cpu()
