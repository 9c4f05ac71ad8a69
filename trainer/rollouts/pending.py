"""Completions of the next step, sampled by the weights before this step's update [`rollout.lag`]."""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import astuple
from itertools import chain
from pathlib import Path

from trainer.background import in_background
from trainer.parallel.ranks import Parallel
from trainer.rollouts.collect import derive_seed
from trainer.rollouts.engine import RolloutEngine, Sample, SamplingParams

PENDING_FILE = "training_state.pending.json"  # of a checkpoint
CLOSING_S = 10.0  # for an engine to end what it samples


class PendingSamples:
    """Samples for a step before it, and hands the completions out when the step asks for them.

    What was not asked for before, as all of a run with lag 0, comes from the engine at once. The engine
    ``overlaps`` where it samples in processes of its own, so that other work can go on meanwhile.
    """

    def __init__(self, engine: RolloutEngine, parallel: Parallel, overlaps: bool) -> None:
        self._engine = engine
        self._parallel = parallel
        self._overlaps = overlaps
        self._samples: dict[int, Sample] = {}  # by what they depend on besides the weights
        self._sampling: tuple[Sequence[int], Future[list[list[Sample]]]] | None = None

    def begin(self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], params: SamplingParams) -> None:
        """Sample what the next `generate` will be asked for, by the weights that the engine has now.

        Returns at once where the engine overlaps: it must then not be used before `wait`.
        """
        keys = list(_keys(prompts, seeds, params))
        if not self._overlaps:
            self._keep(keys, self._engine.generate(prompts, seeds, params))
            return
        self._sampling = keys, in_background(lambda: self._engine.generate(prompts, seeds, params), "sampling")

    def wait(self) -> None:
        """Block until all ranks have finished sampling: the engine may then take other weights.

        Raises:
            EngineError, ConfigError: sampling failed.
        """
        if self._sampling is None:
            return
        keys, future = self._sampling
        self._keep(keys, future.result())
        self._sampling = None
        self._parallel.gather([])  # ranks share servers

    def _keep(self, keys: Sequence[int], sampled: Sequence[Sequence[Sample]]) -> None:
        self._samples = dict(zip(keys, chain.from_iterable(sampled), strict=True))

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], params: SamplingParams
    ) -> list[list[Sample]]:
        """Hand out the pending completions; sample by the engine's weights where others are pending."""
        pending, self._samples = self._samples, {}
        keys = list(_keys(prompts, seeds, params))
        # An engine may sample on all ranks together only.
        if not pending or self._parallel.any(not pending.keys() >= set(keys)):
            return self._engine.generate(prompts, seeds, params)
        samples = map(pending.__getitem__, keys)
        return [[next(samples) for _ in row] for row in seeds]

    def stage(self) -> Callable[[Path], None]:
        """Gather the pending completions of all ranks; returns what writes them, if any, into a checkpoint."""
        items = self._parallel.gather(list(self._samples.items()), after_files=True)
        if not items or not self._parallel.is_main:
            return lambda folder: None
        rows = [[key, *astuple(sample)] for key, sample in items]

        def write(folder: Path) -> None:
            (folder / PENDING_FILE).write_text(json.dumps(rows))

        return write

    def load(self, folder: Path) -> None:
        """Take the pending completions of all ranks from a checkpoint, if it has any."""
        path = folder / PENDING_FILE
        rows = json.loads(path.read_text()) if path.is_file() else []
        self._samples = {
            key: Sample(tuple(token_ids), tuple(logprobs), reason) for key, token_ids, logprobs, reason in rows
        }

    def close(self) -> None:
        """Give the engine, which was closed before, a moment to end what it samples."""
        if self._sampling is not None:
            wait([self._sampling[1]], CLOSING_S)


def _keys(prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], params: SamplingParams) -> Iterator[int]:
    """A number for each completion that stands for all it depends on besides the weights."""
    for prompt, row in zip(prompts, seeds, strict=True):
        for seed in row:
            yield derive_seed(seed, repr(params), *prompt)
