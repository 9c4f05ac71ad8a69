"""Rollouts from vLLM, inside the process of each trainer rank."""

import gc
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from transformers import PreTrainedModel

from trainer.background import in_background
from trainer.errors import ConfigError, EngineError
from trainer.parallel.gpus import check_compiler
from trainer.rollouts.engine import (
    NO_RUN,
    EngineRun,
    Request,
    RolloutEngine,
    SamplingParams,
    sampling_options,
)
from trainer.rollouts.vllm.containment import (
    default_group_kept,
    eager_on_cpu,
    heap_frozen,
    keep_off_shared_memory,
    process_state_kept,
    random_state_kept,
    send_log_to,
)
from trainer.rollouts.vllm.failures import failures_named
from trainer.rollouts.vllm.setup import INSTALL, EngineSetup, llm_options, vllm_installed
from trainer.rollouts.vllm.sync import check_weights_arrived, engine_logprobs, load_weights
from trainer.types import Completion

_MEMORY = ("weights", "kv_cache")  # by vLLM's tags
_kept: list["VllmEngine"] = []  # at most one, of a run that has ended


def engine_for(model: PreTrainedModel, setup: EngineSetup, run: EngineRun) -> "VllmEngine":
    """Return the engine that the run before in this process has left, if it was started with the
    same, or a new one.

    Starting takes most of a minute on a GPU, where graphs are captured.
    """
    if _kept:
        engine = _kept.pop()
        if engine.setup == setup:
            engine.begin_run(run)
            return engine
        engine.shut_down()
    return VllmEngine(model, setup, run)


class VllmEngine(RolloutEngine):
    """A vLLM engine that takes its weights from the live policy after every update.

    It starts with placeholder weights and only ever runs what `sync_weights` gave it. The
    completions of a group are separate requests with their own seeds that share the cached prefix
    of their prompt. A request's log-probabilities are those of the distribution sampled from, as
    `Completion` defines them.

    Raises:
        ConfigError: vLLM is not installed, or the ranks do not divide into tensor-parallel groups.
        EngineError: vLLM does not start, out of memory or for another reason.
        MissingError: there is no compiler beside the GPU.
    """

    def __init__(self, model: PreTrainedModel, setup: EngineSetup, run: EngineRun = NO_RUN) -> None:
        if not vllm_installed():
            raise ConfigError(
                "vLLM is not installed", "rollout.engine", f"{INSTALL}, or rollout.engine=auto"
            )
        self.setup = setup
        self.device = next(model.parameters()).device
        self.sleep_level = setup.settings.sleep_level if self.device.type == "cuda" else 0
        self._owns_default_group = not dist.is_initialized()
        world_size = 1 if self._owns_default_group else dist.get_world_size()
        if world_size % setup.settings.tensor_parallel:
            raise ConfigError(
                f"{world_size} ranks cannot be split into engines of "
                f"{setup.settings.tensor_parallel}",
                "rollout.vllm.tensor_parallel",
                f"choose a divisor of {world_size}",
            )
        if self.device.type == "cuda":
            check_compiler()
        self._asleep: set[str] = set()  # what of `_MEMORY` is handed back
        self.begin_run(run)
        self.llm: Any = None
        self.llm = self._start(llm_options(setup, self.device, world_size))

    def begin_run(self, run: EngineRun) -> None:
        """Sample for another run of the same setup, whose first synchronization is checked
        again.
        """
        self._serves = run
        self._checked = False
        self.news = {}
        send_log_to(run.log_file)

    def _start(self, options: dict[str, Any]) -> Any:
        with (
            random_state_kept(),
            process_state_kept(self.device.index or 0),
            eager_on_cpu(self.device),
        ):
            with failures_named("as it starts"):
                # Something keeps the frames of this import, and the run in those below it: a thread
                # has none.
                llm_of = in_background(lambda: import_module("vllm").LLM, "import of vLLM").result()
                keep_off_shared_memory(self.device)
                try:
                    llm = llm_of(**options)
                except Exception:
                    self._tear_down()
                    raise
            # vLLM has frozen all there is, the run's models among it: they would stay for ever
            gc.unfreeze()
            return llm

    def sync_weights(self, policy_model: nn.Module) -> None:
        """Copy the policy's weights; every rank at the same time where ranks share parameters.

        Raises:
            EngineError: memory for them is missing, the cache of the old ones is in use, or, after
                the first synchronization, engine and policy disagree about a prompt of the run.
        """
        self._wake("weights")
        with random_state_kept(), eager_on_cpu(self.device):
            with failures_named("while it takes over the weights"):
                load_weights(self.llm, policy_model)
            if not self._checked:
                self.wake()
                self._check(policy_model)

    def _check(self, policy_model: nn.Module) -> None:
        try:
            with failures_named("while its weights were checked"):
                difference = check_weights_arrived(
                    partial(engine_logprobs, self.llm),
                    policy_model,
                    self.setup.dtype,
                    self._serves.check_ids,
                )
        except EngineError:
            self.shut_down()
            raise
        self.news = {"rollout/sync_difference": difference}
        self._checked = True

    def sleep(self) -> None:
        """Free GPU memory: KV cache and weights, which go to host memory (level 1) or nowhere
        (level 2).
        """
        if self.sleep_level and not self._asleep:
            with failures_named("while it hands back its memory"), heap_frozen():
                self.llm.sleep(level=self.sleep_level)
            self._asleep = set(_MEMORY)

    def wake(self) -> None:
        """Take the KV cache's memory back; `sync_weights` in between has already taken that of the
        weights.
        """
        self._wake(*_MEMORY)

    def _wake(self, *tags: str) -> None:
        """Take back the memory of these tags, as far as it was handed back."""
        sleeping = [tag for tag in tags if tag in self._asleep]
        if sleeping:
            torch.cuda.empty_cache()
            with failures_named("as it wakes up"), heap_frozen():
                self.llm.wake_up(tags=sleeping)
            self._asleep.difference_update(sleeping)

    def close(self) -> None:
        """End the run: keep the engine, asleep, for the next one of this process, or shut
        it down.
        """
        if self._serves.is_one_of_many and self.llm is not None:
            self.sleep()
            self.begin_run(NO_RUN)
            _kept.append(self)
        else:
            self.shut_down()

    def shut_down(self) -> None:
        """Free the engine's memory; nothing of it is left in the process."""
        if self.llm is None:
            return
        # vLLM's allocator fails for good when tensors are freed whose memory sleep has handed back.
        # there is no room any more: the error that made it close is the one to tell
        with suppress(EngineError):
            self._wake(*_MEMORY)
        self._asleep = set()
        self._tear_down()

    def _tear_down(self) -> None:
        """Shut vLLM down and let go of it, before its memory is looked for."""
        with nullcontext() if self._owns_default_group else default_group_kept():
            _shut_down(self.llm)
        self.llm = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def complete(self, requests: Sequence[Request], params: SamplingParams) -> list[Completion]:
        """Return one completion per request, in order.

        The ranks of a tensor-parallel group call this together; each gets the completions of its
        own requests.

        Raises:
            EngineError: a request failed.
        """
        assert self._checked and not self._asleep, (
            "the engine has no weights: synchronize and wake it first"
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
        asked = [{"prompt_token_ids": list(token_ids)} for token_ids, _ in requests]
        with random_state_kept(), eager_on_cpu(self.device), failures_named("while sampling"):
            outputs = self.llm.generate(asked, options, use_tqdm=False)
        return [_sample(index, output) for index, output in enumerate(outputs)]


def _sample(index: int, output: Any) -> Completion:
    [completion] = output.outputs
    if completion.finish_reason not in ("stop", "length"):
        raise EngineError(
            f"vLLM did not finish request {index} (prompt of {len(output.prompt_token_ids)} "
            f"tokens, {len(completion.token_ids)} sampled): "
            f"{completion.finish_reason or 'no reason given'}",
            "rollout.engine",
            "see the run's vllm.log",
        )
    flat = completion.logprobs
    return Completion(
        tuple(completion.token_ids),
        tuple(flat.logprobs[i] for i in flat.start_indices),
        completion.finish_reason,
    )


def _shut_down(llm: Any) -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    if llm is None:
        cleanup_dist_env_and_memory()
    else:
        llm.llm_engine.engine_core.shutdown()
