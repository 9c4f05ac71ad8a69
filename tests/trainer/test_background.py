import threading
import weakref

from trainer.background import in_background


class Copy:
    """Of a state, say, that is written while training goes on."""

    def __init__(self):
        self.may_end = threading.Event()

    def write(self):
        self.may_end.wait()
        return "written"


def test_what_a_call_held_is_released_before_its_result_is_there():
    copy = Copy()
    looked = threading.Event()
    still_held = []
    held = weakref.ref(copy)
    may_end = copy.may_end
    future = in_background(copy.write, "checkpoint")
    del copy

    def look(_):  # in the thread, as soon as there is a result
        still_held.append(held())
        looked.set()

    future.add_done_callback(look)
    may_end.set()
    assert future.result() == "written" and looked.wait(60) and still_held == [None]
