"""Writing a checkpoint while training goes on."""

import logging
from collections.abc import Callable
from concurrent.futures import Future

from trainer.background import in_background

logger = logging.getLogger(__name__)


class CheckpointWriter:
    """At most one checkpoint that is being written; on each rank its part."""

    def __init__(self) -> None:
        self._writing: Future[None] | None = None

    def begin(self, write: Callable[[], None]) -> None:
        """Call ``write`` in a thread of its own. `wait` comes first."""
        assert self._writing is None, "one checkpoint at a time"
        self._writing = in_background(write, "checkpoint")

    def raise_if_failed(self) -> None:
        """Raise what a checkpoint that could not be written has raised."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Block until nothing is being written.

        Raises:
            StorageError: it could not be written.
        """
        writing = self._writing
        self._writing = None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Block as `wait`, and log what it would raise: of a run that ends for another reason."""
        try:
            self.wait()
        except Exception:
            logger.exception("the last checkpoint was not written")
