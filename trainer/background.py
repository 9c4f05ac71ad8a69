"""Work beside training, in a thread that never keeps the process from ending."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")


def in_background(call: Callable[[], Result], name: str) -> Future[Result]:
    """Call in a thread of this name; the future has the result, or what was raised.

    Whoever waits for it finds what ``call`` held released.
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
