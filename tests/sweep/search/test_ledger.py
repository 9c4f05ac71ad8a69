"""The ledger and the stored space under damage: refused, or without effect."""

import contextlib
import json
import os
import random
import re

import pytest
from hypothesis import example, given

from sweep.record.folder import SweepFolder, read_spec, write_spec
from sweep.search.history import replay
from sweep.search.ledger import Ledger, read_ledger
from tests.json_values import FINITE, UNHURRIED
from tests.refusals import refused
from tests.sweep.search.instant_sweeps import drain, searcher_in
from tests.sweep.spaces import make_spec
from tests.tables import table
from trainer.errors import StorageError, UserError


def small_spec(folder):
    return make_spec(folder, search={"sampler": "random", "configurations": 1})


@pytest.fixture
def ledger(tmp_path):
    """Of a sweep of three configurations with two seeds each."""
    drain(searcher_in(tmp_path, small_spec(tmp_path)))
    return tmp_path / "events.jsonl"


def flips(path, count):
    """Flip one bit of a file after another, each alone; not of its last byte, which ends it."""
    content = path.read_bytes()
    generator = random.Random(0)
    for _ in range(count):
        flipped = bytearray(content)
        flipped[generator.randrange(len(content) - 1)] ^= 1 << generator.randrange(8)
        path.write_bytes(flipped)
        yield


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


def index_of(path, event, place=0):
    indexes = [n for n, line in enumerate(lines_of(path)) if json.loads(line)["event"] == event]
    return indexes[place]


def test_of_flipped_bits_none_changes_what_is_read(ledger):
    before = replay(read_ledger(ledger))
    refused = 0
    for _ in flips(ledger, 1500):
        try:
            assert replay(read_ledger(ledger)) == before
        except StorageError as error:
            assert re.search(r"events\.jsonl:\d+$", error.where)
            refused += 1
    assert refused > 1400


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
    with pytest.raises(StorageError, match="search space of sweep kk is damaged") as raised:
        read_spec(folder)
    assert "remove its first line" in raised.value.hint
    folder.space.write_text(changed.partition("\n")[2])
    assert read_spec(folder).limits.max_failures == 5


def test_a_lost_result_is_trained_again(ledger, tmp_path):
    lines = lines_of(ledger)
    lost = json.loads(lines.pop(index_of(ledger, "result", 2)))
    ledger.write_bytes(b"".join(lines))
    searcher = searcher_in(tmp_path, small_spec(tmp_path))
    again = [(suggestion["configuration"], suggestion["seed"]) for suggestion in drain(searcher)]
    assert again == [(lost["configuration"], lost["seed"])]


def test_a_lost_configuration_is_named(ledger):
    lines = lines_of(ledger)
    place = index_of(ledger, "configuration", 1)
    lines.pop(place)
    ledger.write_bytes(b"".join(lines))
    with refused("ledger-lost-configuration", StorageError) as raised:
        list(read_ledger(ledger))
    assert "configuration 1 " in raised.value.what
    assert raised.value.where.startswith("before ")


@pytest.mark.parametrize(("event", "change", "code", "configuration"), table("impossible_records"))
def test_a_record_that_cannot_be_is_refused_with_a_right_checksum_too(
    ledger, event, change, code, configuration
):
    records = [record for record in read_ledger(ledger) if record["event"] == event]
    record = records[0] if records else {"event": event, "seed": 0}
    Ledger(ledger).append(
        {**record, **({"configuration": 3} if event == "configuration" else {}), **change}
    )
    with refused(code, StorageError) as raised:
        list(read_ledger(ledger))
    if configuration is not None:
        assert f"configuration {configuration} " in raised.value.what


def test_a_trial_that_is_retried_may_end_again(ledger):
    result = next(record for record in read_ledger(ledger) if record["event"] == "result")
    Ledger(ledger).append({**result, "event": "retry"}, {**result, "score": 0.25})
    again = replay(read_ledger(ledger))[result["configuration"]].results[result["seed"]]
    assert again.score == 0.25


def test_a_line_of_brackets_is_refused_by_its_number(ledger):
    ledger.write_bytes(ledger.read_bytes() + b"[" * 200_000 + b"\n")
    with pytest.raises(StorageError) as raised:
        list(read_ledger(ledger))
    assert raised.value.where == f"{ledger}:{len(lines_of(ledger))}"


def test_a_ledger_cut_under_its_writer_loses_one_line(ledger):
    records = list(read_ledger(ledger))
    writer = Ledger(ledger)
    os.truncate(ledger, ledger.stat().st_size - 5)
    retry = {"event": "retry", "configuration": 0, "seed": 0}
    writer.append(retry)
    lines = lines_of(ledger)
    ledger.write_bytes(b"".join([*lines[:-2], lines[-1]]))  # as the advice says
    assert list(read_ledger(ledger)) == [*records[:-1], retry]


@UNHURRIED
@given(FINITE)
@example("a \ud800 half")
def test_any_value_keeps_its_checksum(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("sweep") / "events.jsonl"
    proposal = {"event": "configuration", "configuration": 0, "parameters": value}
    Ledger(path).append(proposal)
    assert list(read_ledger(path)) == [proposal]
