"""A differential check at load: what trains is compared with what was published.

Before step 1, on a few of the user's own problems. A model is supported because its paths agree,
not because a list names it.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from trainer.config.schema import TrainConfig
from trainer.load_check import paths, published
from trainer.load_check.checkpoint import check_saved, random_adapter
from trainer.load_check.model import (
    Paths,
    compare_adapter,
    compare_sampling,
    compare_scoring,
    compare_with_published,
    sample,
)
from trainer.load_check.rows import Prompts, Row, long_prompts, short_prompts
from trainer.load_check.tokens import check_tokens
from trainer.policy.adapters import has_adapter
from trainer.types import Problem

_logger = logging.getLogger(__name__)


def check_at_load(
    config: TrainConfig, run: Paths, tokenizer: Any, problems: Sequence[Problem], folder: Path
) -> None:
    """Compare tokens, scoring, sampling, the loaded policy and its checkpoint with the published
    model. Collective.

    The published model is loaded a second time on rank 0 only, and only if that takes seconds;
    ``model.load_check`` can demand it, or leave out the check.

    Args:
        config: the run's configuration.
        run: the loaded paths of the run.
        tokenizer: the run's tokenizer.
        problems: training problems; some are used.
        folder: folder in which a checkpoint is written once, and removed again.

    Raises:
        ConfigError: two paths differ, or one does not run; names the part.
        StorageError: a checkpoint cannot be written to the disk.
    """
    if config.model.load_check == "off":
        return
    began = time.monotonic()
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
    if run.parallel.is_main:
        _logger.info(
            "load check: %d rows of up to %d tokens agree within %g nats%s (%.1f s)",
            len(rows),
            max(len(row.prompt) + len(row.completion) for row in rows),
            run.bound,
            copy.remark,
            time.monotonic() - began,
        )


@dataclass(frozen=True)
class _Copy:
    """The second copy of the model, on rank 0, unless it would be too large."""

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
    compare_with_published(run, rows, expected)
    return _Copy(model, "")
