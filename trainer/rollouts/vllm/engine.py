"""vLLM engine colocated in each trainer rank's process."""

import gc
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import PreTrainedModel

from loptune.errors import ConfigError, EngineError
from trainer.background import in_background
from trainer.parallel.gpus import check_compiler
from trainer.rollouts.engine import (
    NO_CONTEXT,
    EngineContext,
    Request,
    RequestEngine,
    SamplingParams,
    sampling_options,
)
from trainer.rollouts.vllm.failures import engine_errors
from trainer.rollouts.vllm.isolation import (
    disable_cpu_shared_memory,
    eager_on_cpu,
    freeze_gc_heap,
    keep_default_group,
    one_thread_beside_gpu,
    preserve_environment,
    preserve_random_state,
    preserve_threads,
    redirect_log,
    tolerate_neighbors,
    torchs_linear,
    vllm_settings,
)
from trainer.rollouts.vllm.setup import INSTALL, EngineSetup, llm_options, vllm_installed
from trainer.rollouts.vllm.sync import check_synced_weights, engine_logprobs, load_weights
from trainer.types import Completion

_MEMORY = ("weights", "kv_cache")  # vLLM's sleep-mode tags
_kept: list["VllmEngine"] = []  # at most one engine, left by a finished run for the next one


def get_engine(model: PreTrainedModel, setup: EngineSetup, run: EngineContext) -> "VllmEngine":
    """Reuse the engine of the previous run in this process if its setup is equal, or create a new
    one.

    Starting takes up to a minute on a GPU, mostly to capture CUDA graphs.
    """
    if _kept:
        engine = _kept.pop()
        if engine.setup == setup:
            engine.start_run(run)
            return engine
        engine.shut_down()
    return VllmEngine(model, setup, run)


class VllmEngine(RequestEngine):
    """A vLLM engine whose weights are synced from the policy after every update.

    It starts with dummy weights and only samples after `sync_weights`. The completions of a group
    are separate requests with their own seeds that share the prompt through prefix caching.
    Log-probabilities refer to the sampling distribution, as defined by `Completion`.

    Raises:
        ConfigError: vLLM is not installed, or the number of ranks is not a multiple of
        tensor_parallel.
        EngineError: vLLM fails to start, for example because it is out of memory.
        MissingError: no C compiler, which a GPU needs.
    """

    def __init__(
        self, model: PreTrainedModel, setup: EngineSetup, run: EngineContext = NO_CONTEXT
    ) -> None:
        if not vllm_installed():
            raise ConfigError(
                "vLLM is not installed",
                "rollout.engine",
                f"{INSTALL}, or rollout.engine=auto",
                code="no-vllm",
            )
        self.setup = setup
        self.device = next(model.parameters()).device
        self.sleep_level = setup.settings.sleep_level if self.device.type == "cuda" else 0
        world_size = dist.get_world_size() if dist.is_initialized() else 1
        if world_size % setup.settings.tensor_parallel:
            raise ConfigError(
                f"{world_size} ranks are not divisible by tensor_parallel "
                f"{setup.settings.tensor_parallel}",
                "rollout.vllm.tensor_parallel",
                f"choose a divisor of {world_size}",
                code="not-divisible",
            )
        if self.device.type == "cuda":
            check_compiler()
        self._asleep: set[str] = set()  # tags of `_MEMORY` that are freed
        self.start_run(run)
        self.llm: Any = None
        self.llm = self._start(llm_options(setup, self.device, world_size))

    def start_run(self, run: EngineContext) -> None:
        """Attach the engine to a run. Its first weight sync is verified again."""
        self._serves = run
        self._checked = False
        self.news = {}
        redirect_log(run.log_file)

    def _start(self, options: dict[str, Any]) -> Any:
        with (
            preserve_random_state(),
            torchs_linear(),
            preserve_environment(),
            preserve_threads(),
            vllm_settings(self.device.index or 0, options["tensor_parallel_size"]),
            eager_on_cpu(self.device),
        ):
            with engine_errors("during startup"):
                # Something keeps references to the frames of this import, and thereby to the run.
                # Importing in a thread avoids that.
                llm_of = in_background(lambda: import_module("vllm").LLM, "import of vLLM").result()
                disable_cpu_shared_memory(self.device)
                tolerate_neighbors(self.device)
                keep_default_group()
                try:
                    llm = llm_of(**options)
                except Exception:
                    import_module("vllm.distributed").cleanup_dist_env_and_memory()
                    raise
            # vLLM freezes the heap, which would keep the run's models alive forever
            gc.unfreeze()
            return llm

    def sync_weights(self, policy_model: nn.Module) -> None:
        """Copy the policy's weights to the engine. Collective if parameters are sharded.

        Raises:
            EngineError: out of memory; the prefix cache of the old weights is in use; or, on the
            first sync, engine and policy log-probabilities differ.
        """
        self._wake("weights")
        with preserve_random_state(), torchs_linear(), eager_on_cpu(self.device):
            with engine_errors("during the weight sync"):
                load_weights(self.llm, policy_model)
            if not self._checked:
                self.wake()
                self._check(policy_model)

    def _check(self, policy_model: nn.Module) -> None:
        try:
            with engine_errors("during the weight check"):
                difference = check_synced_weights(
                    partial(engine_logprobs, self.llm),
                    policy_model,
                    self.setup.dtype,
                    self._serves.probe_ids,
                )
        except EngineError:
            self.shut_down()
            raise
        self.news = {"rollout/sync_difference": difference}
        self._checked = True

    def sleep(self) -> None:
        """Free the GPU memory of KV cache and weights. Level 1 offloads the weights to host memory;
        level 2 discards them.
        """
        if self.sleep_level and not self._asleep:
            with engine_errors("while going to sleep"), freeze_gc_heap():
                self.llm.sleep(level=self.sleep_level)
            self._asleep = set(_MEMORY)

    def wake(self) -> None:
        """Reallocate the KV cache. `sync_weights` has already reallocated the weights."""
        self._wake(*_MEMORY)

    def _wake(self, *tags: str) -> None:
        """Reallocate the memory of these tags if it was freed."""
        sleeping = [tag for tag in tags if tag in self._asleep]
        if sleeping:
            torch.cuda.empty_cache()
            with engine_errors("while waking up"), freeze_gc_heap():
                self.llm.wake_up(tags=sleeping)
            self._asleep.difference_update(sleeping)

    def close(self) -> None:
        """End the run: keep the sleeping engine for the next run in this process, or shut it
        down.
        """
        if self._serves.shares_process and self.llm is not None:
            self.sleep()
            self.start_run(NO_CONTEXT)
            _kept.append(self)
        else:
            self.shut_down()

    def shut_down(self) -> None:
        """Shut the engine down and free all its memory."""
        if self.llm is None:
            return
        # vLLM's allocator breaks if tensors are freed while asleep, so wake up first. Ignore
        # out-of-memory errors here, to keep the original error.
        with suppress(EngineError):
            self._wake(*_MEMORY)
        self._asleep = set()
        self.llm.llm_engine.engine_core.shutdown()
        self.llm = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def complete(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Return one completion per request, in order.

        Collective over a tensor-parallel group. Each rank gets the completions of its own requests.

        Raises:
            EngineError: a request failed.
        """
        assert self._checked and not self._asleep, (
            "the engine has no weights: call sync_weights() and wake() first"
        )
        if self.setup.settings.tensor_parallel == 1:
            return self._run(requests, params)
        from vllm.distributed.parallel_state import get_tp_group

        group = get_tp_group()
        gathered: list[Any] = [None] * group.world_size
        dist.all_gather_object(gathered, requests, group=group.cpu_group)
        samples = self._run([request for part in gathered for request in part], params)
        start = sum(len(part) for part in gathered[: group.rank_in_group])
        return samples[start : start + len(requests)]

    def _run(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        from vllm import SamplingParams as VllmParams

        if not requests:
            return []
        options = [
            VllmParams(**sampling_options(params, seed), flat_logprobs=True) for _, seed in requests
        ]
        prompts = [{"prompt_token_ids": list(token_ids)} for token_ids, _ in requests]
        with (
            preserve_random_state(),
            torchs_linear(),
            eager_on_cpu(self.device),
            one_thread_beside_gpu(self.device),
            engine_errors("while sampling"),
        ):
            outputs = self.llm.generate(prompts, options, use_tqdm=False)
        return [to_completion(index, output) for index, output in enumerate(outputs)]


def to_completion(index: int, output: Any) -> Completion:
    """Return the completion of request ``index`` from vLLM's output.

    Raises:
        EngineError: vLLM did not finish the request.
    """
    [completion] = output.outputs
    if completion.finish_reason not in ("stop", "length"):
        raise EngineError(
            f"vLLM did not finish request {index} (prompt of {len(output.prompt_token_ids)} "
            f"tokens, {len(completion.token_ids)} sampled): "
            f"{completion.finish_reason or 'no reason given'}",
            "rollout.engine",
            "see vllm-RANK.log in the run folder",
            code="request-unfinished",
        )
    flat = completion.logprobs
    return Completion(
        tuple(completion.token_ids),
        tuple(flat.logprobs[i] for i in flat.start_indices),
        completion.finish_reason,
    )
