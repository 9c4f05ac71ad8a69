"""The event log and the stored space under damage: refused, or without effect."""

import contextlib
import itertools
import json
import os
import random
import re

import pytest
from hypothesis import example, given

from loptune.errors import StorageError, UserError
from sweep.record.folder import SweepFolder, read_spec, write_spec
from sweep.search.event_log import EventLog, read_event_log
from sweep.search.history import replay
from tests.json_values import FINITE, UNHURRIED
from tests.refusals import refused
from tests.sweep.search.instant_sweeps import drain, searcher_in
from tests.sweep.spaces import make_spec
from tests.tables import table


def small_spec(folder):
    return make_spec(folder, search={"sampler": "random", "configurations": 1})


@pytest.fixture
def event_log(tmp_path, monkeypatch):
    """Of a sweep of three configurations with two seeds each: the same bytes each time."""
    clock = itertools.count(1_700_000_000)
    monkeypatch.setattr("time.time", lambda: next(clock) + 1 / 7)
    drain(searcher_in(tmp_path, small_spec(tmp_path)))
    return tmp_path / "events.jsonl"


def flips(path, count):
    """Flip one bit of a file after another, each alone; not of its last byte, which ends it. Yield
    the place and the damaged line, for whoever has to look at a failure.
    """
    content = path.read_bytes()
    generator = random.Random(0)
    for _ in range(count):
        flipped = bytearray(content)
        place = generator.randrange(len(content) - 1)
        flipped[place] ^= 1 << generator.randrange(8)
        path.write_bytes(flipped)
        start = content.rfind(b"\n", 0, place) + 1
        lines = [text[start:].splitlines()[0] for text in (content, flipped)]
        yield f"byte {place}: {lines}"


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


def index_of(path, event, place=0):
    indexes = [n for n, line in enumerate(lines_of(path)) if json.loads(line)["event"] == event]
    return indexes[place]


def test_of_flipped_bits_none_changes_what_is_read(event_log):
    before = replay(read_event_log(event_log))
    accepted = []
    for flip in flips(event_log, 1500):
        try:
            assert replay(read_event_log(event_log)) == before, flip
            accepted.append(flip)
        except StorageError as error:
            assert re.search(r"events\.jsonl:\d+$", error.where), flip
    # the last digit of a number of 17 digits may not change the number
    assert len(accepted) < 20, accepted


def test_of_flipped_bits_none_changes_the_space(tmp_path):
    folder = SweepFolder(tmp_path, "kk")
    folder.root.mkdir()
    spec = make_spec(tmp_path)
    write_spec(folder, spec)
    assert read_spec(folder) == spec
    for _ in flips(folder.space, 400):
        with contextlib.suppress(UserError):
            assert read_spec(folder) == spec


def test_a_changed_space_is_refused_until_its_heading_is_removed(tmp_path):
    folder = SweepFolder(tmp_path, "kk")
    folder.root.mkdir()
    write_spec(folder, make_spec(tmp_path))
    changed = folder.space.read_text().replace("max_failures: 2", "max_failures: 5")
    folder.space.write_text(changed)
    with refused("space-checksum", StorageError) as raised:
        read_spec(folder)
    assert "remove its first line" in raised.value.hint
    folder.space.write_text(changed.partition("\n")[2])
    assert read_spec(folder).limits.max_failures == 5


def test_a_lost_result_is_trained_again(event_log, tmp_path):
    lines = lines_of(event_log)
    lost = json.loads(lines.pop(index_of(event_log, "result", 2)))
    event_log.write_bytes(b"".join(lines))
    searcher = searcher_in(tmp_path, small_spec(tmp_path))
    again = [(suggestion["configuration"], suggestion["seed"]) for suggestion in drain(searcher)]
    assert again == [(lost["configuration"], lost["seed"])]


def test_a_lost_configuration_is_named(event_log):
    lines = lines_of(event_log)
    place = index_of(event_log, "configuration", 1)
    lines.pop(place)
    event_log.write_bytes(b"".join(lines))
    with refused("event-log-lost-configuration", StorageError) as raised:
        list(read_event_log(event_log))
    assert "configuration 1 " in raised.value.what
    assert raised.value.where.startswith("before ")


@pytest.mark.parametrize(("event", "change", "code", "configuration"), table("impossible_records"))
def test_a_record_that_cannot_be_is_refused_with_a_right_checksum_too(
    event_log, event, change, code, configuration
):
    records = [record for record in read_event_log(event_log) if record["event"] == event]
    record = records[0] if records else {"event": event, "seed": 0}
    EventLog(event_log).append(
        {**record, **({"configuration": 3} if event == "configuration" else {}), **change}
    )
    with refused(code, StorageError) as raised:
        list(read_event_log(event_log))
    if configuration is not None:
        assert f"configuration {configuration} " in raised.value.what


def test_a_trial_that_is_retried_may_end_again(event_log):
    result = next(record for record in read_event_log(event_log) if record["event"] == "result")
    EventLog(event_log).append({**result, "event": "retry"}, {**result, "score": 0.25})
    again = replay(read_event_log(event_log))[result["configuration"]].results[result["seed"]]
    assert again.score == 0.25


def test_a_line_of_brackets_is_refused_by_its_number(event_log):
    event_log.write_bytes(event_log.read_bytes() + b"[" * 200_000 + b"\n")
    with pytest.raises(StorageError) as raised:
        list(read_event_log(event_log))
    assert raised.value.where == f"{event_log}:{len(lines_of(event_log))}"


def test_an_event_log_cut_under_its_writer_loses_one_line(event_log):
    records = list(read_event_log(event_log))
    writer = EventLog(event_log)
    os.truncate(event_log, event_log.stat().st_size - 5)
    retry = {"event": "retry", "configuration": 0, "seed": 0}
    writer.append(retry)
    lines = lines_of(event_log)
    event_log.write_bytes(b"".join([*lines[:-2], lines[-1]]))  # as the advice says
    assert list(read_event_log(event_log)) == [*records[:-1], retry]


@UNHURRIED
@given(FINITE)
@example("a \ud800 half")
def test_any_value_keeps_its_checksum(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("sweep") / "events.jsonl"
    proposal = {"event": "configuration", "configuration": 0, "parameters": value}
    EventLog(path).append(proposal)
    assert list(read_event_log(path)) == [proposal]
