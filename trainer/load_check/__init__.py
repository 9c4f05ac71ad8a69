"""Check at load time that training, sampling and checkpoints agree with the published model.

The check runs before step 1 on a few of the user's problems. A model is supported if all of these
agree; there is no list of supported models.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from loptune.temporary import temporary_folder
from trainer.config.schema import TrainConfig
from trainer.load_check import paths, published
from trainer.load_check.checkpoint import FOLDER, check_saved, random_adapter
from trainer.load_check.model import (
    Paths,
    bound_of,
    compare_adapter,
    compare_sampling,
    compare_scoring,
    compare_with_published,
    sample,
)
from trainer.load_check.passed import PassedChecks
from trainer.load_check.rows import Prompts, Row, long_prompts, short_prompts
from trainer.load_check.tokens import check_tokens
from trainer.parallel.device import deepspeed_on_cpu
from trainer.parallel.models import load_policy_for_inference, logprob_model
from trainer.parallel.ranks import Parallel
from trainer.policy.adapters import has_adapter
from trainer.policy.architectures import model_size
from trainer.policy.load import model_source
from trainer.rollouts.transformers import TransformersEngine
from trainer.types import Problem

_logger = logging.getLogger(__name__)

# largest model, in parameters, that is checked before the trials of a sweep
_SMALL_PARAMETERS = 2e8


def check_at_load(
    config: TrainConfig,
    run: Paths,
    tokenizer: Any,
    problems: Sequence[Problem],
    folder: Path,
    passed_checks: Path | None = None,
) -> None:
    """Compare tokens, scoring, sampling, the loaded policy and its checkpoint with the published
    model. Collective.

    Rank 0 loads the published model a second time if that takes only seconds; ``model.load_check``
    can force this, or disable the check.

    Args:
        config: the run's configuration.
        run: the loaded paths of the run.
        tokenizer: the run's tokenizer.
        problems: training problems, of which a few are used.
        folder: folder to create for a checkpoint, and to remove again.
        passed_checks: folder in which runs record passed checks; if a run with the same inputs has
            passed, nothing is checked.

    Raises:
        ConfigError: two paths differ, or a path does not run; the error names the part at fault.
        StorageError: a checkpoint cannot be written to the disk.
    """
    if config.model.load_check == "off":
        return
    began = time.monotonic()
    passed = PassedChecks(passed_checks, config, run, problems)
    before = passed.run_that_passed()
    if before is not None:
        if run.parallel.is_main:
            _logger.info("load check: passed by %s with the same model, data and paths", before)
        return
    check_tokens(config, tokenizer, problems)
    short = short_prompts(config, tokenizer, problems)
    rows = _compare_paths(config, run, short)
    copy = _compare_with_copy(config, run, rows)
    of_short = [row for row in rows if row.kind == "short"]
    compares_adapter = has_adapter(run.causal_lm) and not run.parallel.shards_parameters
    with random_adapter(run) if compares_adapter else nullcontext():
        if compares_adapter:
            of_short = compare_adapter(run, short)
        check_saved(config.model, run, tokenizer, folder, of_short, copy.model)
    passed.add(folder.parent)
    if run.parallel.is_main:
        _logger.info(
            "load check: %d rows of up to %d tokens agree within %g nats%s (%.1f s)",
            len(rows),
            max(len(row.prompt) + len(row.completion) for row in rows),
            run.bound,
            copy.remark,
            time.monotonic() - began,
        )


def check_without_training(
    config: TrainConfig, engine: TransformersEngine, tokenizer: Any, problems: Sequence[Problem]
) -> None:
    """Run the check on a policy that is loaded only for sampling, in one process. A new adapter is
    not checked.

    Raises:
        ConfigError: as in `check_at_load`.
    """
    policy = logprob_model(engine.model, config, engine.model.dtype)
    run = Paths(
        policy=policy, engine=engine, parallel=Parallel(engine.model.device), bound=bound_of(policy)
    )
    with temporary_folder("check") as folder:
        check_at_load(config, run, tokenizer, problems, folder / FOLDER)


def check_before_trials(config: TrainConfig, tokenizer: Any, problems: Sequence[Problem]) -> None:
    """Run the check on the CPU of the machine that starts a sweep, if the model is small enough to
    take only seconds and its attention kernel is sdpa or eager. Trials check the paths of their own
    ranks, once per distinct configuration.

    Raises:
        ConfigError: as in `check_at_load`.
    """
    size = model_size(model_source(config.model).name)
    is_small = size is not None and size.parameters < _SMALL_PARAMETERS
    if not is_small or config.model.attn_implementation not in ("sdpa", "eager"):
        return
    with deepspeed_on_cpu():
        model = load_policy_for_inference(config, torch.device("cpu"))
        engine = TransformersEngine(model, pad_token_id=tokenizer.pad_token_id)
        check_without_training(config, engine, tokenizer, problems)


@dataclass(frozen=True)
class _Copy:
    """A second copy of the model on rank 0, unless it would be too large."""

    model: PreTrainedModel | None
    remark: str


def _compare_paths(config: TrainConfig, run: Paths, short: Prompts) -> list[Row]:
    limit = published.longest_row(paths.parameter_count(run.causal_lm), run.parallel.device)
    rows = sample(run, [short, *long_prompts(config, short, run.causal_lm.config, limit)])
    expected = compare_scoring(run, rows)
    compare_sampling(run, rows, expected)
    return rows


def _compare_with_copy(config: TrainConfig, run: Paths, rows: Sequence[Row]) -> _Copy:
    parameters = paths.parameter_count(run.causal_lm)
    tokens = sum(len(row.prompt) + len(row.completion) for row in rows)
    place = published.place_for_copy(parameters, tokens, run.parallel.device)
    if config.model.load_check == "full":
        place = place or torch.device("cpu")
    if not run.parallel.gather([place is not None])[0]:
        return _Copy(None, "; a second copy of the model would be too large")
    model = None
    expected = None
    if run.parallel.is_main:
        assert place is not None
        with run.parallel.unsharded():
            model = published.load_published(config.model, place)
        expected = paths.plain(model, rows, run.temperature)

    def with_kernel() -> list[Tensor]:
        assert place is not None
        with run.parallel.unsharded():
            same = published.load_published(config.model, place, config.model.attn_implementation)
        return paths.plain(same, rows, run.temperature)

    compare_with_published(run, rows, expected, with_kernel)
    return _Copy(model, "")
