"""Construction of the rollout engine and the reward pool."""

import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import psutil
import torch.distributed as dist
from transformers import PreTrainedModel

from loptune.errors import ConfigError
from rewards.sandbox import RewardPool, ScoringFailedError, ScoringRefusedError
from trainer.config.reward import RewardConfig
from trainer.config.schema import TrainConfig
from trainer.parallel.device import compute_dtype, dtype_name
from trainer.policy.vocabulary import unknown_token_ids
from trainer.rollouts.engine import NO_CONTEXT, EngineContext, RolloutEngine
from trainer.rollouts.scoring_errors import withheld_hint
from trainer.rollouts.transformers import TransformersEngine
from trainer.rollouts.vllm.engine import get_engine
from trainer.rollouts.vllm.setup import check_excluded, context_length, engine_setup, vllm_installed

logger = logging.getLogger(__name__)

_WORKERS_PER_CORE = 4  # more than one, because some rewards wait for a compiler or an LLM judge
# fraction of a model's ids that may be missing from its tokenizer without a warning
_USUAL_PADDING = 0.02
_MIN_WORKER_BYTES = 64 << 20  # minimum memory of a scoring process

SLOW = (
    "sampling on this GPU with the transformers engine, which does not use CUDA graphs; vLLM "
    "(make install-gpu, rollout.engine=vllm) was 2.7 times as fast even on a CPU"
)


def build_engine(
    config: TrainConfig,
    model: PreTrainedModel,
    tokenizer: Any,
    full_weights: Callable[[], AbstractContextManager[None]] = nullcontext,
    run: EngineContext = NO_CONTEXT,
) -> RolloutEngine:
    """Create the configured rollout engine.

    ``full_weights`` gathers the full parameters for the transformers engine, see
    `TransformersEngine`.

    Raises:
        ConfigError: vLLM is not installed, a request can exceed the context length, or vLLM does
            not support the temperature, the number of excluded token ids, or NCCL on this machine.
        EngineError: vLLM does not start, or a server has the wrong settings.
        MissingError: a server does not answer, or the model cannot be found.
    """
    engine = config.rollout.engine
    device = next(model.parameters()).device
    use_local_vllm = engine == "vllm" or (
        engine == "auto" and device.type == "cuda" and vllm_installed()
    )
    is_main = not dist.is_initialized() or dist.get_rank() == 0
    if is_main:
        _warn_of_unknown_ids(tokenizer, model)
    if use_local_vllm or config.rollout.uses_servers:
        check_excluded(len(unknown_token_ids(tokenizer, _rows(model))))
        if fault := config.vllm_temperature_fault():
            raise ConfigError(
                fault, "rollout.engine=auto, which selected vLLM", code="temperature-of-vllm"
            )
    if is_main and config.rollout.stop and (use_local_vllm or config.rollout.uses_servers):
        logger.warning(
            "vLLM has no tokenizer here, so it keeps sampling after a stop string; the tokens "
            "after the stop string are discarded"
        )
    if config.rollout.uses_servers:
        from trainer.rollouts.vllm.server import VllmServerEngine

        dtype = dtype_name(compute_dtype(config.model, device))
        return VllmServerEngine(config.rollout.vllm, context_length(config), dtype, run.probe_ids)
    if use_local_vllm:
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        return get_engine(model, engine_setup(config, model, ranks), run)
    if device.type == "cuda" and is_main:
        logger.warning(SLOW)
    return TransformersEngine(
        model,
        pad_token_id=tokenizer.pad_token_id,
        compute_dtype=compute_dtype(config.model, device),
        full_weights=full_weights,
        on_finished=run.on_finished,
    )


def _rows(model: PreTrainedModel) -> int:
    rows: int = model.config.get_text_config().vocab_size
    return rows


def _warn_of_unknown_ids(tokenizer: Any, model: PreTrainedModel) -> None:
    """Warn if the model has many more ids than its tokenizer. A few hundred are usual: models pad
    their embedding.
    """
    rows = _rows(model)
    unknown = len(unknown_token_ids(tokenizer, rows))
    if unknown > _USUAL_PADDING * rows:
        logger.warning(
            "warning: %d of the model's %d token ids are missing from the tokenizer and are never "
            "sampled: check that it is the tokenizer of this model",
            unknown,
            rows,
        )


def build_rewards(config: RewardConfig, max_failure_rate: float = 1.0) -> RewardPool:
    """Create the reward pool; ``max_failure_rate`` as in `RewardPool`.

    Raises:
        ConfigError: unknown reward function, failed import, a scoring process that does not start,
            or too many workers for this machine.
    """
    cores = os.cpu_count() or 1
    max_workers = min(
        _WORKERS_PER_CORE * cores, psutil.virtual_memory().available // _MIN_WORKER_BYTES
    )
    if config.workers > max_workers:
        what = (
            f"{config.workers} scoring processes are too many: with {cores} cores and the "
            f"free memory, at most {max_workers} are allowed"
        )
        raise ConfigError(
            what,
            "reward.workers",
            f"set reward.workers to at most {max_workers}",
            code="too-many-workers",
        )
    try:
        return RewardPool(
            config.functions,
            timeout_s=config.timeout_s,
            memory_mb=config.memory_mb,
            workers=config.workers,
            max_failure_rate=max_failure_rate,
            environment=config.environment,
        )
    except (ValueError, ScoringFailedError) as error:
        hint = "use a built-in reward or module:function, or fix the module"
        if isinstance(error, ScoringRefusedError) and error.cause == "environment":
            hint = withheld_hint(error.withheld)
        raise ConfigError(str(error), "reward", hint, code="reward-unusable") from error
