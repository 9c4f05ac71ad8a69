import pickle

import pytest

from loptune.errors import ConfigError, StorageError, first_line, printable


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("no such file\nand more", "no such file"),
        ("\n  disk full \n", "disk full"),
        ("", "OSError"),
        ("\n", "OSError"),
    ],
)
def test_the_first_line_of_any_text(text, line):
    assert first_line(OSError(text)) == line


def test_an_error_crosses_processes_with_its_key():
    error = pickle.loads(
        pickle.dumps(ConfigError("too large", "space.yaml:3", "write 1", "algorithm.ar_alpha"))
    )
    assert error.key == "algorithm.ar_alpha"
    assert str(error) == "error: too large\nwhere: space.yaml:3\nnext:  write 1"


def test_a_copy_with_another_hint_or_place_keeps_the_rest():
    class OwnError(StorageError):
        def __init__(self, number):
            super().__init__("full", f"disk {number}", "free space", "runs_dir", code="disk-full")

    error = OwnError(3)
    other = error.with_hint("remove it")
    assert type(other) is OwnError and (other.key, other.code) == ("runs_dir", "disk-full")
    assert str(other) == "error: full [disk-full]\nwhere: disk 3\nnext:  remove it"
    assert str(error.with_place("--output")).splitlines()[1:] == [
        "where: --output",
        "next:  free space",
    ]
    assert (error.where, error.hint) == ("disk 3", "free space")


def test_what_would_command_a_terminal_is_shown_as_an_escape():
    assert (
        printable("\x1b[2Jé\x07\x9b|\u202e\ud800\n\ttext")
        == "\\x1b[2Jé\\x07\\x9b|\\u202e\\ud800\n\ttext"
    )
    assert (
        str(StorageError("\x1b]0;title\x07", "a\rb")) == "error: \\x1b]0;title\\x07\nwhere: a\\rb"
    )
