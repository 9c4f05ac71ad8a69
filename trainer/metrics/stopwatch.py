"""Seconds spent in the phases of a training step."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Timer that accumulates the seconds of named phases: ``with stopwatch("rollout"): ...``.

    Synchronizes with the GPU at both ends of a phase, so that asynchronous work counts in its
    phase.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time the enclosed block as part of ``phase``."""
        _wait_for_gpu()
        started = time.perf_counter()
        try:
            yield
        finally:
            _wait_for_gpu()
            self.seconds[phase] += time.perf_counter() - started


def _wait_for_gpu() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
