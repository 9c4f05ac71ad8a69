import pickle

import pytest
import yaml

from loptune.errors import ConfigError
from loptune.section import Section, field_descriptions
from loptune.yaml_document import section_of
from tests.refusals import refused
from tests.trainer.config.test_extends import write
from trainer.config.extends import preset_names, preset_specs
from trainer.config.schema import (
    TrainConfig,
    apply_overrides,
    check_key,
    dotted_keys,
    dump_config,
    ineffective_keys,
    load_config,
    parse_override,
    save_config,
)


def test_overrides_are_yaml_values(tmp_path):
    path = write(tmp_path, "{}")
    config = load_config(
        path,
        [
            "optim.lr=1e-6",
            "data.train=train.parquet",
            "rollout.stop_token_ids=[1, 2]",
            "max_steps=null",
        ],
    )
    assert config.optim.lr == 1e-6
    assert config.data.train[0].source == "train.parquet"
    assert config.rollout.stop_token_ids == [1, 2]
    assert config.max_steps is None


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("ar_alpha=1", "algorithm.ar_alpha"),
        ("algorithm.ar_alpa=1", "algorithm.ar_alpha"),
        ("seed", "key=value"),
    ],
)
def test_bad_overrides_name_the_nearest_key(tmp_path, override, hint):
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, "{}"), [override])
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("override", "parent"),
    [
        ("data.train.0.size=100", "data.train"),
        ("seed.first=1", "seed"),
        ("evaluation.sets.dev.limit.most=3", "evaluation.sets.dev.limit"),
    ],
)
def test_an_override_below_a_value_is_refused(tmp_path, override, parent):
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, "{}"), [override])
    assert caught.value.hint == f"set {parent} as one value"


def test_an_override_reaches_into_a_free_mapping(tmp_path):
    config = load_config(
        write(tmp_path, "{}"), ["evaluation.sets.dev.limit=5", "reward.functions.format=0.5"]
    )
    assert config.evaluation.sets["dev"].limit == 5
    assert config.reward.functions == {"knights_knaves": 1.0, "format": 0.5}


def test_an_override_keeps_text_that_only_looks_like_a_number():
    assert parse_override("optim.lr=nan") == ("optim.lr", "nan")
    assert parse_override("model.revision=v1e") == ("model.revision", "v1e")
    assert parse_override("tracking.experiment=infinity") == ("tracking.experiment", "infinity")
    assert parse_override('model.revision="12e4567"') == ("model.revision", "12e4567")


@pytest.mark.parametrize(("text", "number"), [("1e-6", 1e-6), (".5E1", 5.0)])
def test_an_override_reads_every_form_of_exponent(text, number):
    assert parse_override(f"optim.lr={text}") == ("optim.lr", number)


@pytest.mark.parametrize("name", preset_names())
def test_presets_resolve_and_survive_a_round_trip(tmp_path, name):
    config = load_config(name)
    save_config(config, tmp_path / "saved.yaml")
    assert load_config(str(tmp_path / "saved.yaml")) == config
    assert yaml.safe_load(dump_config(config))["seed"] == config.seed
    assert pickle.loads(pickle.dumps(config)) == config


def test_ranks_that_read_a_configuration_while_it_is_saved_find_it_whole(tmp_path):
    config = load_config("tiny_kk")
    path = tmp_path / "config.yaml"
    save_config(config, path)
    with path.open() as reader:
        save_config(apply_overrides(config, {"max_steps": 7}), path)
        assert reader.read() == dump_config(config)
    assert load_config(str(path)).max_steps == 7


def test_every_field_is_documented_and_every_key_is_checkable():
    keys = dotted_keys()
    assert "algorithm.ar_alpha" in keys
    for key in keys:
        check_key(key)
        *parents, last = key.split(".")
        model = TrainConfig
        for part in parents:
            model = section_of(model.model_fields[part].annotation)
        assert field_descriptions(model)[last], f"{key} has no description"


def test_cross_field_rules():
    with refused("checkpoint-without-evaluation", ConfigError, names=("checkpoint.every_steps",)):
        apply_overrides(TrainConfig(), {"checkpoint.every_steps": 7})


@pytest.mark.parametrize(
    ("temperature", "allowed"), [(0.009, False), (0.01, True), (2.0, True), (2.1, False)]
)
def test_temperatures_that_vllm_changes_or_refuses_are_for_other_engines(temperature, allowed):
    changes = {"rollout.temperature": temperature, "rollout.engine": "vllm"}
    if allowed:
        apply_overrides(TrainConfig(), changes)
    else:
        with refused("temperature-of-vllm", ConfigError, names=("rollout.temperature",)):
            apply_overrides(TrainConfig(), changes)
    apply_overrides(TrainConfig(), changes | {"rollout.engine": "transformers"})


@pytest.mark.parametrize("temperature", [0.0, 0.005])
def test_greedy_evaluation_is_possible_with_vllm_and_nearly_greedy_is_not(temperature):
    changes = {"evaluation.temperature": temperature, "rollout.engine": "vllm"}
    if temperature == 0:
        apply_overrides(TrainConfig(), changes)
    else:
        with refused("temperature-of-vllm", ConfigError, names=("evaluation.sets.dev",)):
            apply_overrides(TrainConfig(), changes)


@pytest.mark.parametrize(
    ("override", "code", "names"),
    [
        ("epochs=3", "epochs-without-effect", ["epochs", "max_steps is 50"]),
        (
            "evaluation.temperature=0",
            "identical-completions",
            ["evaluation.completions_per_problem"],
        ),
    ],
)
def test_what_would_change_nothing_is_refused(override, code, names):
    with refused(code, ConfigError, names=names):
        load_config("tiny_kk", [override])
    assert load_config("tiny_kk", ["epochs=3", "max_steps=null"]).epochs == 3


@pytest.mark.parametrize("name", ["..", "a/b", "", "a b", "-x"])
def test_an_evaluation_set_has_a_name_that_a_metric_can_have(name):
    with refused("invalid-set-name", ConfigError, names=(repr(name),)):
        apply_overrides(
            TrainConfig(), {"evaluation.sets": {name: {"source": "generated", "split": "dev"}}}
        )


def test_a_key_of_the_only_training_source_is_overridden_by_name(tmp_path):
    assert load_config(write(tmp_path, "{}"), ["data.train.size=7"]).data.train[0].size == 7
    two = write(tmp_path, "data: {train: [a.jsonl, b.jsonl]}")
    with pytest.raises(ConfigError) as caught:
        load_config(two, ["data.train.size=7"])
    assert caught.value.hint == "set data.train as one value"


def _with(section, path, changes):
    """A section with fields of a nested section replaced, unchecked."""
    if not path:
        return section.model_copy(update=changes)
    return section.model_copy(update={path[0]: _with(getattr(section, path[0]), path[1:], changes)})


def _declared(section, path=()):
    """Every field that needs another key: the path of its section, its name and the key."""
    for name, field in type(section).model_fields.items():
        if isinstance(field.json_schema_extra, dict):
            yield path, name, str(field.json_schema_extra["needs"])
        if isinstance(getattr(section, name), Section):
            yield from _declared(getattr(section, name), (*path, name))


def test_every_key_without_effect_is_named_with_the_key_that_it_needs():
    correction = {"algorithm.rollout_correction.cap": 2.0}
    config = apply_overrides(TrainConfig(), correction)
    declared = list(_declared(config))
    assert len(declared) > 20
    for path, name, needed in declared:
        key, _, values = needed.partition("=")
        idle = ".".join((*path, name)), ".".join((*path, needed))
        away = object()
        for given, expected in ((None, [idle]), (values.split("|")[-1] or 1, [])):
            changed = _with(config, path, {name: away, key: given})
            assert [pair for pair in ineffective_keys(changed) if pair[0] == idle[0]] == expected, (
                idle
            )
    puzzles = load_config("tiny_kk", ["data.train.source=x.jsonl", "data.train.people=[4]"])
    needs_generated = [("data.train.people", "data.train.source=generated")]
    assert [
        pair for pair in ineffective_keys(puzzles) if pair[0] == "data.train.people"
    ] == needs_generated


def test_no_preset_has_a_key_without_effect():
    assert {
        spec: idle for spec in preset_specs() if (idle := list(ineffective_keys(load_config(spec))))
    } == {}
