"""Asynchronous checkpoint writing."""

import logging
from collections.abc import Callable
from concurrent.futures import Future

from trainer.background import in_background

logger = logging.getLogger(__name__)


class CheckpointWriter:
    """Background writer of at most one checkpoint at a time; each rank writes its own files."""

    def __init__(self) -> None:
        self._writing: Future[None] | None = None

    def begin(self, write: Callable[[], None]) -> None:
        """Start ``write`` in a background thread. Call `wait` first."""
        assert self._writing is None, "a checkpoint is still being written"
        self._writing = in_background(write, "checkpoint")

    def raise_if_failed(self) -> None:
        """Raise the exception of a failed write, without blocking."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Block until the write has finished.

        Raises:
            StorageError: the checkpoint could not be written. Other exceptions of ``write`` are
                raised, too.
        """
        writing = self._writing
        self._writing = None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Wait like `wait`, but log the exception instead of raising it, because the run is already
        ending for another reason.
        """
        try:
            self.wait()
        except Exception:
            logger.exception("the last checkpoint was not written")
