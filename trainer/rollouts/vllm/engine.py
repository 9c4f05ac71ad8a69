"""Rollouts from vLLM, inside the process of each trainer rank."""

import gc
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import PreTrainedModel

from trainer.config.schema import TrainConfig, VllmConfig
from trainer.errors import ConfigError, EngineError, first_line
from trainer.rollouts.engine import Sample, SamplingParams
from trainer.rollouts.vllm.containment import (
    default_group_kept,
    eager_on_cpu,
    process_state_kept,
    random_state_kept,
)
from trainer.rollouts.vllm.sync import check_weights_arrived, engine_logprobs, load_weights

CPU_KV_CACHE_MB = 256
CPU_STEP_TOKENS = 4096
CPU_BLOCK_SIZE = 32  # the smallest on a CPU; only whole blocks of a prefix are shared
INSTALL = "in the clone of loptune: pip install -e '.[vllm]'"


def vllm_installed() -> bool:
    """Whether vLLM can be imported."""
    return importlib.util.find_spec("vllm") is not None


def context_length(config: TrainConfig, model: PreTrainedModel) -> int:
    """Tokens of the longest request a run can make, or ``rollout.vllm.max_model_len``.

    Raises:
        ConfigError: a prompt and its completion can be longer than the engine's or the model's context.
    """
    completion = max(config.rollout.max_new_tokens, config.evaluation.max_new_tokens or 0)
    longest = config.data.max_prompt_tokens + completion
    limit = config.rollout.vllm.max_model_len or longest
    positions = getattr(model.config, "max_position_embeddings", None) or limit
    for key, allowed in (
        ("rollout.vllm.max_model_len", limit),
        ("max_position_embeddings of the model", positions),
    ):
        if longest > allowed:
            raise ConfigError(
                f"a prompt of {config.data.max_prompt_tokens} and a completion of {completion} tokens need a "
                f"context of {longest}, but {key} is {allowed}",
                "data.max_prompt_tokens, rollout.max_new_tokens",
                f"lower them to {allowed} tokens together"
                + (", or raise rollout.vllm.max_model_len" if limit < positions else ""),
            )
    return limit


def check_request(place: int, token_ids: Sequence[int], max_new_tokens: int, max_model_len: int) -> None:
    """Whether a prompt and its completion fit.

    Raises:
        ValueError: the prompt is empty.
        ConfigError: they exceed the engine's context.
    """
    if not token_ids:
        raise ValueError(f"prompt {place} has no tokens: give at least one, such as the BOS token")
    if len(token_ids) + max_new_tokens > max_model_len:
        raise ConfigError(
            f"prompt {place} has {len(token_ids)} tokens: with {max_new_tokens} for its completion it exceeds "
            f"the engine's context of {max_model_len}",
            "rollout.vllm.max_model_len",
            "raise it, or lower rollout.max_new_tokens or data.max_prompt_tokens",
        )


def without_dual_chunk_attention(config: Any) -> Any:
    """The model's configuration without its attention for contexts of a million tokens.

    Qwen2.5-1M models ask vLLM for it, which needs a backend of its own; the policy in transformers attends
    plainly, and below a chunk (262,144 tokens) the two are the same.
    """
    if hasattr(config, "dual_chunk_attention_config"):
        del config.dual_chunk_attention_config
    return config


class VllmEngine:
    """A vLLM engine that takes its weights from the live policy after every update.

    It starts with placeholder weights and only ever runs what `sync_weights` gave it. The completions of a group
    are separate requests with their own seeds that share the cached prefix of their prompt. A request's
    log-probabilities are those of the distribution sampled from, as ``Sample`` defines them.

    Args:
        model: the policy, for its configuration and device; its weights are not read here.
        source: folder or hub name of the model's ``config.json``.
        max_model_len: context length [tokens].
        settings: the engine's settings.
        revision: hub revision.
        dtype: compute dtype, ``float32`` or ``bfloat16``.
        trust_remote_code: run code of the model folder.

    Raises:
        ConfigError: vLLM is not installed, or the ranks do not divide into tensor-parallel groups.
        EngineError: vLLM does not start, out of memory or for another reason.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        source: str,
        max_model_len: int,
        settings: VllmConfig,
        revision: str | None = None,
        dtype: str = "float32",
        trust_remote_code: bool = False,
    ) -> None:
        if not vllm_installed():
            raise ConfigError("vLLM is not installed", "rollout.engine", f"{INSTALL}, or rollout.engine=auto")
        self.device = next(model.parameters()).device
        self.dtype = dtype
        self.max_model_len = max_model_len
        self.vocabulary = model.config.get_text_config().vocab_size
        self.sleep_level = settings.sleep_level if self.device.type == "cuda" else 0
        self.tensor_parallel = settings.tensor_parallel
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        if world_size % settings.tensor_parallel:
            raise ConfigError(
                f"{world_size} ranks cannot be split into engines of {settings.tensor_parallel}",
                "rollout.vllm.tensor_parallel",
                f"choose a divisor of {world_size}",
            )
        self._owns_default_group = not dist.is_initialized()
        self._checked = False
        self._asleep = False
        options: dict[str, Any] = {
            "model": source,
            "revision": revision,
            "trust_remote_code": trust_remote_code,
            "dtype": dtype,
            "load_format": "dummy",
            "max_model_len": max_model_len,
            "enforce_eager": settings.enforce_eager or self.device.type == "cpu",
            "gpu_memory_utilization": settings.gpu_memory_utilization,
            "tensor_parallel_size": settings.tensor_parallel,
            "enable_sleep_mode": self.sleep_level > 0,
            "enable_prefix_caching": True,
            "logprobs_mode": "processed_logprobs",
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "disable_log_stats": True,
            "hf_overrides": without_dual_chunk_attention,
        }
        if world_size > 1:
            options["distributed_executor_backend"] = "external_launcher"
        if settings.tensor_parallel > 1:
            # vLLM's own all-reduce needs to see its peers' devices, which a scheduler may hide from each rank.
            options["disable_custom_all_reduce"] = torch.cuda.device_count() < settings.tensor_parallel
        if self.device.type == "cpu":
            options |= {
                "kv_cache_memory_bytes": (settings.kv_cache_mb or CPU_KV_CACHE_MB) << 20,
                "block_size": CPU_BLOCK_SIZE,
                # A request whose prompt is cut in two rewinds its generator, which CPU generators cannot.
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": max(CPU_STEP_TOKENS, max_model_len),
            }
        elif settings.kv_cache_mb:
            options["kv_cache_memory_bytes"] = settings.kv_cache_mb << 20
        self.llm = self._start(options)

    def _start(self, options: dict[str, Any]) -> Any:
        with random_state_kept(), process_state_kept(self.device.index or 0), eager_on_cpu(self.device):
            try:
                from vllm import LLM
            except ImportError as error:
                raise _start_error(error) from error
            try:
                return LLM(**options)
            except (ImportError, RuntimeError, ValueError, AssertionError) as error:
                self._tear_down()
                raise _start_error(error) from error

    def sync_weights(self, policy_model: nn.Module) -> None:
        """Copy the policy's weights; every rank at the same time where ranks share parameters.

        Raises:
            EngineError: after the first synchronisation, engine and policy disagree about a short text.
        """
        if self._asleep:
            torch.cuda.empty_cache()
            self.llm.wake_up(tags=["weights"])
        with random_state_kept(), eager_on_cpu(self.device):
            load_weights(self.llm, policy_model)
            if not self._checked:
                assert not self._asleep, "the first synchronisation needs an engine that is awake"
                try:
                    with _failures_named("while checking its weights"):
                        check_weights_arrived(partial(engine_logprobs, self.llm), policy_model, self.dtype)
                except EngineError:
                    self.close()
                    raise
                self._checked = True

    def sleep(self) -> None:
        """Free GPU memory: KV cache and weights, which go to host memory (level 1) or nowhere (level 2)."""
        if self.sleep_level and not self._asleep:
            self.llm.sleep(level=self.sleep_level)
            self._asleep = True

    def wake(self) -> None:
        """Take the KV cache's memory back; `sync_weights` in between has already taken that of the weights."""
        if self._asleep:
            torch.cuda.empty_cache()
            self.llm.wake_up(tags=["kv_cache"])
            self._asleep = False

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], params: SamplingParams
    ) -> list[list[Sample]]:
        """Sample ``len(seeds[p])`` completions of each prompt, in the order of ``prompts`` and ``seeds``.

        The ranks of a tensor-parallel group call this together; each gets the completions of its own prompts.

        Raises:
            ConfigError: a request is longer than the engine's context.
            EngineError: a request failed.
        """
        assert self._checked and not self._asleep, "the engine has no weights: synchronise and wake it first"
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts but {len(seeds)} lists of seeds: give one per prompt")
        places = [(p, g) for p, row_seeds in enumerate(seeds) for g in range(len(row_seeds))]
        requests = [(tuple(prompts[p]), seeds[p][g]) for p, g in places]
        for (p, _), (token_ids, _) in zip(places, requests, strict=True):
            check_request(p, token_ids, params.max_new_tokens, self.max_model_len)
        samples = iter(self._complete(requests, params))
        return [[next(samples) for _ in row_seeds] for row_seeds in seeds]

    def close(self) -> None:
        """Free the engine's memory; nothing of it is left in the process."""
        if self.llm is None:
            return
        core = self.llm.llm_engine.engine_core
        self.llm = None
        self._tear_down(core)

    def _tear_down(self, core: Any = None) -> None:
        if self._owns_default_group:
            _shut_down(core)
        else:
            with default_group_kept():
                _shut_down(core)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _complete(self, requests: list[tuple[tuple[int, ...], int]], params: SamplingParams) -> list[Sample]:
        """One sample per (prompt, seed), of this rank's requests or of all in its tensor-parallel group."""
        if self.tensor_parallel == 1:
            return self._run(requests, params)
        from vllm.distributed.parallel_state import get_tp_group

        group = get_tp_group()
        gathered: list[Any] = [None] * group.world_size
        dist.all_gather_object(gathered, requests, group=group.cpu_group)
        samples = self._run([request for part in gathered for request in part], params)
        start = sum(len(part) for part in gathered[: group.rank_in_group])
        return samples[start : start + len(requests)]

    def _run(self, requests: list[tuple[tuple[int, ...], int]], params: SamplingParams) -> list[Sample]:
        from vllm import SamplingParams as VllmParams

        if not requests:
            return []
        options = [
            VllmParams(
                temperature=params.temperature,
                top_p=params.top_p,
                top_k=params.top_k,
                min_p=params.min_p,
                max_tokens=params.max_new_tokens,
                stop_token_ids=list(params.stop_token_ids),
                ignore_eos=True,  # the caller's stop tokens are the only ones
                seed=seed,
                logprobs=0,  # of the sampled token
                flat_logprobs=True,
                detokenize=False,
            )
            for _, seed in requests
        ]
        asked = [{"prompt_token_ids": list(token_ids)} for token_ids, _ in requests]
        with random_state_kept(), eager_on_cpu(self.device), _failures_named("while sampling"):
            outputs = self.llm.generate(asked, options, use_tqdm=False)
        return [_sample(index, output) for index, output in enumerate(outputs)]


@contextmanager
def _failures_named(when: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise EngineError(
            f"vLLM failed {when}: {first_line(error)}",
            "rollout.engine",
            "if memory ran out, lower rollout.vllm.gpu_memory_utilization; else use rollout.engine=transformers",
        ) from error


def _sample(index: int, output: Any) -> Sample:
    [completion] = output.outputs
    if completion.finish_reason not in ("stop", "length"):
        raise EngineError(
            f"vLLM did not finish request {index} (prompt of {len(output.prompt_token_ids)} tokens, "
            f"{len(completion.token_ids)} sampled): {completion.finish_reason or 'no reason given'}",
            "rollout.engine",
            "run again with VLLM_LOGGING_LEVEL=INFO to see why",
        )
    flat = completion.logprobs
    return Sample(
        tuple(completion.token_ids), tuple(flat.logprobs[i] for i in flat.start_indices), completion.finish_reason
    )


def _shut_down(core: Any) -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    if core is None:
        cleanup_dist_env_and_memory()
    else:
        core.shutdown()


def _start_error(error: Exception) -> EngineError:
    text = str(error)
    short_of_memory = isinstance(error, torch.OutOfMemoryError) or any(
        word in text.lower() for word in ("memory", "kv cache", "cache block")
    )
    if short_of_memory:
        return EngineError(
            f"vLLM does not get the memory it needs: {first_line(error)}",
            "rollout.vllm",
            "raise rollout.vllm.gpu_memory_utilization (or kv_cache_mb) if the cache is too small, lower it if "
            "the device is full; a smaller max_model_len or a larger tensor_parallel needs less",
        )
    return EngineError(
        f"vLLM does not start: {first_line(error)}",
        "rollout.engine",
        "use rollout.engine=transformers, or run again with VLLM_LOGGING_LEVEL=INFO",
    )
