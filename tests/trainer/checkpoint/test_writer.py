import logging
import threading
import time

import pytest

from trainer.checkpoint.writer import CheckpointWriter


def _fail():
    raise OSError("no space left")


def test_waiting_ends_when_the_checkpoint_is_written():
    writer = CheckpointWriter()
    may_end = threading.Event()
    written = []
    writer.begin(lambda: written.append(may_end.wait(10)))
    writer.raise_if_failed()  # does not wait
    assert written == []
    may_end.set()
    writer.wait()
    assert written == [True]
    writer.wait()  # nothing is being written


def test_what_a_checkpoint_raises_is_raised_once(caplog):
    writer = CheckpointWriter()
    writer.begin(_fail)
    with pytest.raises(OSError, match="no space left"):
        writer.wait()
    writer.raise_if_failed()
    writer.begin(_fail)
    with pytest.raises(OSError, match="no space left"):  # as soon as it has ended
        for _ in range(1000):
            writer.raise_if_failed()
            time.sleep(0.01)
    writer.begin(_fail)
    with caplog.at_level(logging.ERROR):
        writer.close()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and "no space left" in caplog.text
