import pytest
import yaml

from trainer.config.bounded_yaml import MAX_BYTES, load_yaml
from trainer.config.yaml_document import parse_value, parse_yaml
from trainer.errors import ConfigError


def laughs(levels: int, line: str) -> str:
    """Aliases of aliases: 9 ** levels values from a line for each level."""
    lines = [line.format(i=i, below=",".join([f"*a{i - 1}"] * 9)) for i in range(1, levels + 1)]
    return "\n".join(["a0: &a0 {x: 1}", *lines]) + "\n"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (laughs(9, "a{i}: &a{i} [{below}]"), "aliases make it more than 50,000 values"),
        (laughs(9, "a{i}: &a{i} {{<<: [{below}]}}"), "aliases make it more than 50,000 values"),
        ("a: &a [*a]", "or without end"),
        ("&a\nseed: *a", "or without end"),
        ("a: &a\n  <<: *a", "or without end"),
        ("a: " + "[" * 5000, "nested more than 50 levels deep"),
        ("a: " + "{a: " * 3000, "nested more than 50 levels deep"),
        ("".join(" " * i + "a:\n" for i in range(60)), "nested more than 50 levels deep"),
        ("a: " + "x" * MAX_BYTES, "more than 256 KiB"),
        ("seed: " + "9" * 5000, "not a valid int: '9999"),
        ("seed: 0x_", "not a valid int: '0x_'"),
        ("seed: 2024-13-45", "not a valid timestamp: '2024-13-45'"),
        ("seed: !!bool maybe", "not a valid bool: 'maybe'"),
        ("seed: !!timestamp soon", "not a valid timestamp: 'soon'"),
        ('seed: "\\ud800"', "not a valid str"),
        ("seed: \x00", "special characters are not allowed"),
        ("a: 1\n---\nb: 2", "another document"),
    ],
)
def test_what_would_hang_or_crash_a_reader_is_one_error(text, what):
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "space.yaml")
    assert what in caught.value.what and "\n" not in caught.value.what
    assert caught.value.where.startswith("space.yaml") and caught.value.hint
    with pytest.raises(ConfigError):
        parse_value(text, "command line")


def test_within_the_limits_it_reads_what_yaml_reads():
    text = laughs(3, "a{i}: &a{i} [{below}]") + "merged: {<<: *a0, y: 2}\ntime: 2024-02-29\nn: 1_000\n"
    assert load_yaml(text)[0] == yaml.safe_load(text)
    assert load_yaml("") == (None, None)
