"""YAML of strangers: what it says, and that reading it is bounded."""

import contextlib
import math

import pytest
import yaml

from loptune.foreign_yaml import MAX_VALUES, ForeignYamlError, read_foreign_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: 1\nb: [0.5, 1e-6, -.inf, true, null, ~, no, 010]",
         {"a": 1, "b": [0.5, 1e-6, -math.inf, True, None, None, "no", 10]}),
        ("a: '1'\nb: \"true\"", {"a": "1", "b": "true"}),
        ("path: !!python/object/apply:os.system [echo]", {"path": ["echo"]}),
        ("a: !!python/name:os.system ''", {"a": ""}),
        ("a: &x {k: 1}\nb: *x", {"a": {"k": 1}, "b": {"k": 1}}),
        ("a: &x {k: 1, l: 2}\nb: {<<: *x, k: 3}", {"a": {"k": 1, "l": 2}, "b": {"k": 3, "l": 2}}),
        ("a: &x {k: 1}\nb: &y {k: 2, l: 2}\nc: {<<: [*x, *y]}",
         {"a": {"k": 1}, "b": {"k": 2, "l": 2}, "c": {"k": 1, "l": 2}}),
        ("when: 2024-13-45", {"when": "2024-13-45"}),
        ("a: 1\na: 2", {"a": 2}),
        (f"a: {'9' * 5000}", {"a": "9" * 5000}),
    ],
)  # fmt: skip
def test_plain_values_are_read(text, value):
    assert read_foreign_yaml(text) == value


def test_scalars_may_stay_texts():
    assert read_foreign_yaml("run_id: 7_000\nstatus: 3", typed=False) == {
        "run_id": "7_000",
        "status": "3",
    }


def test_what_pyyaml_writes_is_read_back():
    value = {"lr": 1e-6, "n": 3, "flag": False, "none": None, "text": "yes", "list": [1.5, "1"]}
    assert read_foreign_yaml(yaml.safe_dump(value)) == value


def doubling(first, line, levels):
    return "\n".join([first, *(line.format(n=n, m=n - 1) for n in range(1, levels))])


ATTACKS = {
    "aliases": doubling("a0: &a0 [x, x]", "a{n}: &a{n} [*a{m}, *a{m}]", 30),
    "aliases of a long text": f"a: &a {'x' * 200_000}\nb: [{', '.join(['*a'] * 9_000)}]",
    "merge keys": doubling("a0: &a0 {x: 1}", "a{n}: &a{n} {{<<: [*a{m}, *a{m}]}}", 30),
    "flow depth": "[" * 100_000,
    "mapping depth": "{a: " * 50_000,
    "block depth": "- " * 100_000,
    "an alias of itself": "a: &a [*a]",
    "an alias of nothing": "a: *b",
    "values": "[" + "1," * (MAX_VALUES + 1) + "]",
    "bytes": "a: " + "x" * (1 << 18),
    "syntax": "a: [b\n c: }",
    "a control character": "a: \x07",
}


@pytest.mark.timeout(30)  # without bounds: hours
@pytest.mark.parametrize("name", ATTACKS)
def test_reading_is_bounded(name):
    with pytest.raises(ForeignYamlError):
        read_foreign_yaml(ATTACKS[name])


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "piece", ["? ", "&a ", "!t ", "a\n", "'", '"\\x', "{a: 1}, ", "- 1\n", "%", "[*a, ", "a: &b "]
)
def test_repeated_pieces_are_read_or_refused_at_once(piece):
    with contextlib.suppress(ForeignYamlError):
        read_foreign_yaml(piece * ((1 << 18) // len(piece)))
