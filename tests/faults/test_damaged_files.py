"""Every file of a sweep, damaged: a sentence that names it, or no effect; never a traceback or an
empty report.
"""

import random

import pytest

from sweep.cli import main as sweep
from tests.sweep.ended_sweeps import SCORES, write_sweep


def empty(path):
    path.write_bytes(b"")


def garbage(path):
    path.write_bytes(random.Random(0).randbytes(500))


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-10])


def one_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def line_ends_of_windows(path):
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def removed(path):
    path.unlink()


def folder_in_its_place(path):
    path.unlink()
    path.mkdir()


def link_to_itself(path):
    path.unlink()
    path.symlink_to(path.name)


# Of a sweep and of one of its trials, found where they are written, so that a new one cannot be
# forgotten.
def files_of(root):
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return [path for path in files if "trials" not in path.parts or path.parent.name == "c001-s0"]


DAMAGES = [empty, cut_short, one_bit, garbage, line_ends_of_windows]
DAMAGES += [removed, folder_in_its_place, link_to_itself]
TORN = (cut_short, "events.jsonl")  # its last trial is trained again


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_or_has_no_effect(tmp_path, monkeypatch, capsys, damage):
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    write_sweep(runs, "s", SCORES)
    assert sweep(["report", "s"]) == 0
    whole = (runs / "s" / "report" / "trials.csv").read_text()
    files = files_of(runs / "s")
    assert len(files) > 6
    for path in files:
        content = path.read_bytes()
        damage(path)
        for words in (["ls"], ["status", "s"], ["report", "s"]):
            capsys.readouterr()
            code = sweep(words)
            error = capsys.readouterr().err
            assert code in (0, 2, 3, 4), (path, words)
            assert code == 0 or str(path) in error, (path, words, error)
            lost = path.name == "metrics.jsonl" or (damage, path.name) == TORN
            if code == 0 and words[0] == "report" and not lost:
                assert (runs / "s" / "report" / "trials.csv").read_text() == whole, path
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        path.write_bytes(content)
