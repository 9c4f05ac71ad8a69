import pytest
import yaml
from hypothesis import example, given

from loptune.errors import ConfigError, MissingError
from loptune.yaml_document import (
    dump_yaml,
    field_names,
    leaf_keys,
    nearest,
    parse_override,
    parse_value,
    parse_yaml,
    read_yaml,
    submodel,
    validate,
)
from sweep.space.file import load_space
from sweep.space.spec import SweepSpec
from tests.json_values import JSON, UNHURRIED
from tests.refusals import refused
from tests.tables import table
from tests.trainer.config.test_extends import write
from trainer.config.schema import TrainConfig, load_config


@pytest.mark.parametrize(("text", "line", "code", "named", "hint"), table("config_errors"))
def test_errors_name_file_line_key_and_the_nearest_choice(tmp_path, text, line, code, named, hint):
    path = write(tmp_path, text)
    with refused(code, ConfigError, names=(named,)) as caught:
        load_config(path)
    assert caught.value.where.startswith(f"{path}:{line}".rstrip(":"))
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("algorithm.ar_alpha=7", "algorithm.ar_alpha"),
        ("optim.betas=[0.9, x]", "optim.betas.1"),
        ("optim.learning=1", "optim.learning"),
        ("rollout.top_p.x=1", "rollout.top_p.x"),
    ],
)
def test_an_error_carries_the_key_that_is_refused(override, key):
    with pytest.raises(ConfigError) as caught:
        load_config("tiny_kk", [override])
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("seeds", 3, "write a list: [3]"),
        ("seeds", None, "write a list: []"),
        ("name", True, 'write it in quotes: "true"'),
        ("program.command", "python a.py --lr={lr} 'b c'", "[python, a.py, '--lr={lr}', b c]"),
        ("program.command", "python 'a.py", "write a list: [python 'a.py]"),
        ("name", 5, 'write it in quotes: "5"'),
        ("parameters", ["lr"], "`key: value` lines"),
        ("objective.worthwhile", "1%", "without a unit"),
    ],
)
def test_a_value_of_another_type_is_told_how_to_be_written(key, value, hint):
    space = {
        "name": "a",
        "program": {"command": ["python", "{seed}"], "defaults": {"lr": 0.1}},
        "objective": {"metric": "acc"},
        "parameters": {"lr": {"uniform": [0, 1]}},
        "search": {"configurations": 2},
    }
    *above, last = key.split(".")
    section = space
    for part in above:
        section = section[part]
    section[last] = value
    document = parse_yaml(yaml.safe_dump(space), "space.yaml")
    with pytest.raises(ConfigError) as caught:
        validate(SweepSpec, document)
    assert caught.value.key == key
    assert hint in caught.value.hint


def test_a_file_is_read_no_further_than_the_limit(tmp_path):
    (tmp_path / "big.yaml").write_bytes(b"a: " + "é".encode() * (1 << 18))
    with refused("file-unreadable", ConfigError, names=("256 KiB",)):
        read_yaml(tmp_path / "big.yaml")


def test_a_folder_is_not_called_a_file_in_another_encoding(tmp_path):
    with refused("file-unreadable", ConfigError, names=("Is a directory",)) as caught:
        read_yaml(tmp_path)
    assert caught.value.hint == "pass a YAML file that you have permission to read"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: " + "[" * 5000, "too deep"),
        ("seed: &a [1]\nb: *a", "aliases"),
        ("seed: \x00", "special characters are not allowed"),
        ("a: 1\n---\nb: 2", "another document"),
        ("a: !!python/object/apply:os.system [touch x]", "could not determine a constructor"),
    ],
)
def test_what_yaml_cannot_construct_is_one_error(text, named):
    for read in (parse_yaml, parse_value):
        with refused("invalid-yaml", ConfigError, names=(named,)) as caught:
            read(text, "space.yaml")
        assert caught.value.where.startswith("space.yaml")


def test_a_misspelt_section_is_named_before_what_is_missing_without_it(tmp_path):
    (tmp_path / "space.yaml").write_text("name: x\ntrainer: base\nsearchh: {configurations: 1}\n")
    with refused("unknown-key", ConfigError, names=("searchh",)) as caught:
        load_space(tmp_path / "space.yaml")
    assert caught.value.hint == "did you mean search?"


def test_a_key_without_its_section_is_found_in_it(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, "extends: base\nlr: 1.0e-5\n"))
    assert caught.value.hint == "did you mean optim.lr?"
    (tmp_path / "space.yaml").write_text("name: x\ntrainer: base\nsearch: {configurations: 1}\n")
    with pytest.raises(ConfigError) as caught:
        load_space(tmp_path / "space.yaml", ["configurations=4"])
    assert caught.value.hint == "did you mean search.configurations?"


def test_files_that_cannot_be_read_say_which(tmp_path):
    with refused("no-such-file", MissingError) as missing:
        load_config(str(tmp_path / "absent.yaml"))
    assert missing.value.where == str(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes("a: é".encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        read_yaml(tmp_path / "latin.yaml")
    assert caught.value.hint.endswith("YAML in UTF-8")
    with refused("no-mapping", ConfigError):
        parse_yaml("", "empty.yaml")


def test_a_key_stands_where_it_is_or_where_its_parent_is():
    document = parse_yaml("a:\n  b:\n  - 1\n  - c: 2\n", "f.yaml")
    assert document.place(("a", "b", 1, "c")) == "f.yaml:4"
    assert document.place(("a", "b", 7)) == "f.yaml:2"
    assert document.place(("x",)) == "f.yaml"
    assert document.where(("a", "b", 1, "c")) == "f.yaml:4, key a.b.1.c"
    assert document.where(()) == "f.yaml"


def test_a_key_may_stand_in_two_mappings_but_not_twice_in_one():
    assert parse_yaml("a: {x: 1}\nb: {x: 2}\n", "f.yaml").data == {"a": {"x": 1}, "b": {"x": 2}}
    with refused("key-twice", ConfigError, names=("a.0.x", "lines 2 and 4")):
        parse_yaml("a:\n- x: 1\n  y: 2\n  x: 3\n", "f.yaml")


@pytest.mark.parametrize(
    ("word", "choices", "hint"),
    [
        ("grop", ["grpo", "rloo"], "did you mean grpo?"),
        ("lr", ["optim.lr", "seed"], "did you mean optim.lr?"),
        ("zzz", ["b", "a"], "valid: a, b"),
        ("x", [], "valid: "),
    ],
)
def test_the_nearest_choice(word, choices, hint):
    assert nearest(word, choices) == hint


def test_of_many_choices_some_are_named():
    names = [f"name{i}" for i in range(13)]
    assert nearest("zzzzzz", names).startswith("valid: name0, ") and nearest(
        "zzzzzz", names
    ).endswith(", and others")
    assert nearest("m_layers", names, "trainer options model") == "trainer options model"


def test_a_long_value_is_shown_in_part():
    with pytest.raises(ConfigError) as refused:
        parse_value("[" + "x" * 100, "data.train")
    assert "[" + "x" * 76 + "... (" in refused.value.what
    assert (refused.value.where, refused.value.hint) == ("data.train", "quote the value")


def test_scalars_are_those_of_yaml_1_2():
    text = "[010, 1:30, no, 1e-6, -.5E+2, e5, ~, true, '7', 2024-01-01, 0x1F, .inf]"
    values = [
        10,
        "1:30",
        "no",
        1e-6,
        -50.0,
        "e5",
        None,
        True,
        "7",
        "2024-01-01",
        "0x1F",
        float("inf"),
    ]
    assert parse_value(text, "") == values
    assert parse_override("max_steps=010") == ("max_steps", 10)


@UNHURRIED
@given(JSON)
@example(["1e-6", "no", "010", "1:30", "~", "", "true", "2024-01-01"])
def test_every_reader_of_yaml_finds_what_was_written(value):
    text = dump_yaml(value)
    assert parse_value(text, "") == yaml.safe_load(text) == value
    assert parse_override(f"key={text}") == ("key", value)


def test_models_are_found_through_lists_mappings_and_options():
    assert "source" in field_names(TrainConfig, ("evaluation", "sets", "dev"))
    assert "source" in field_names(TrainConfig, ("data", "train", 0))
    assert field_names(TrainConfig, ("seed", "first")) == []
    assert submodel(TrainConfig, ()) is TrainConfig
    keys = leaf_keys(TrainConfig)
    assert {"seed", "optim.lr", "rollout.vllm.mode"} <= set(keys)
    assert "rollout.vllm" not in keys and len(keys) == len(set(keys))
