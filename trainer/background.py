"""Background work in daemon threads."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


def in_background(call: Callable[[], Result], name: str) -> Future[Result]:
    """Run ``call`` in a daemon thread with this name, and return a future of its result.

    Objects that ``call`` references are released before the future is done.
    """
    future: Future[Result] = Future()
    calls = [call]

    def run() -> None:
        try:
            future.set_result(calls.pop()())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return future
