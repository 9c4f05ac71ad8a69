"""What a run file starts from: presets, files, and named variants."""

import pytest

from loptune.errors import ConfigError
from tests.refusals import refused
from trainer.config.extends import preset_names, variant_names
from trainer.config.schema import load_config

VARIANTS = """\
extends: base
optim: {lr: 0.2}
variants:
  ar: {algorithm: {ar_alpha: 0.3}}
  hot:
    rollout: {temperature: 0.9}
    optim:
      eps: 0.5
"""


def write(folder, text, name="spec.yaml"):
    path = folder / name
    path.write_text(text)
    return str(path)


def test_extends_merges_sections_and_replaces_free_mappings(tmp_path):
    write(
        tmp_path,
        "optim: {lr: 0.1, eps: 0.5}\nreward: {functions: {math: 1.0}}\nseed: 3\n",
        "base.yaml",
    )
    path = write(
        tmp_path, "extends: base.yaml\noptim: {lr: 0.2}\nreward: {functions: {format: 2.0}}\n"
    )
    config = load_config(path)
    assert (config.optim.lr, config.optim.eps, config.seed) == (0.2, 0.5, 3)
    assert config.reward.functions == {"format": 2.0}


def test_extends_in_a_circle_is_refused(tmp_path):
    write(tmp_path, "extends: b.yaml\n", "a.yaml")
    write(tmp_path, "extends: a.yaml\n", "b.yaml")
    with pytest.raises(ConfigError) as caught:
        load_config(str(tmp_path / "a.yaml"))
    assert caught.value.code == "circular-extends"


def test_a_variant_is_merged_over_its_file(tmp_path):
    path = write(tmp_path, VARIANTS)
    plain = load_config(path)
    ar = load_config(f"{path}:ar")
    hot = load_config(f"{path}:hot")
    assert (plain.optim.lr, plain.algorithm.ar_alpha) == (0.2, 0.0)
    assert (ar.optim.lr, ar.algorithm.ar_alpha) == (0.2, 0.3)
    assert (hot.optim.lr, hot.optim.eps, hot.rollout.temperature, hot.algorithm.ar_alpha) == (
        0.2,
        0.5,
        0.9,
        0.0,
    )


def test_a_file_extends_a_variant_and_has_the_variants_of_what_it_extends(tmp_path):
    write(tmp_path, VARIANTS, "below.yaml")
    path = write(tmp_path, "extends: below.yaml:hot\noptim: {lr: 0.4}\n")
    assert load_config(path).rollout.temperature == 0.9
    assert load_config(path).optim.lr == 0.4
    assert load_config(f"{path}:ar").algorithm.ar_alpha == 0.3
    second_path = write(
        tmp_path,
        "extends: below.yaml\nvariants: {cold: {rollout: {temperature: 0.1}}}\n",
        "own.yaml",
    )
    assert load_config(f"{second_path}:cold").rollout.temperature == 0.1
    with refused("no-variant", ConfigError, names=(" ar",)):
        load_config(f"{second_path}:ar")


@pytest.mark.parametrize(
    ("text", "variant", "where", "code", "hint"),
    [
        (VARIANTS, "arr", ":3", "no-variant", "did you mean ar?"),
        ("extends: base\n", "ar", "", "no-variant", "spec has no variants"),
        ("variants: [ar]\n", "", ":1", "invalid-variants", "write name: {...}"),
        ("variants: {ar: 0.3}\n", "ar", ":1", "invalid-variant", "section"),
        (
            "variants:\n  ar:\n    algorithm: {alpha: 0.3}\n",
            "ar",
            ":3",
            "unknown-key",
            "did you mean ar_alpha?",
        ),
    ],
)
def test_an_impossible_variant_is_refused_with_its_line(tmp_path, text, variant, where, code, hint):
    path = write(tmp_path, text)
    with refused(code, ConfigError) as caught:
        load_config(f"{path}:{variant}")
    assert caught.value.where.startswith(f"{path}{where}")
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("below", "above", "where"),
    [
        ("seed: 1\n\noptim:\n  lrr: 0.1\n", "", "below.yaml:4, key optim.lrr"),
        ("optim: {lr: 0.1}\n", "\noptim:\n  lrr: 0.1\n", "spec.yaml:4, key optim.lrr"),
        # the file replaces the list of the file below it
        ("data:\n  train:\n  - a.jsonl\n", "data: {train: {size: 0}}\n", "spec.yaml:2,"),
        ("variants:\n  hot:\n    optim: {lrr: 1}\n", "", "below.yaml:3, key optim.lrr"),
    ],
)
def test_an_error_names_the_file_and_line_of_the_key(tmp_path, below, above, where):
    write(tmp_path, below, "below.yaml")
    path = write(tmp_path, f"extends: below.yaml\n{above}")
    spec = f"{path}:hot" if "hot" in below else path
    with pytest.raises(ConfigError) as caught:
        load_config(spec)
    assert caught.value.where.startswith(str(tmp_path / where))


@pytest.mark.parametrize(
    ("spec", "hint"),
    [("tiny_k", "tiny_kk"), ("kk_3b_rpp_ar", "kk_3b:rpp_ar"), ("kk_7c:ar_lopti", "kk_7b:ar_lopti")],
)
def test_an_unknown_name_gets_the_nearest_preset_or_variant(spec, hint):
    with refused("no-preset", ConfigError, names=(spec,)) as caught:
        load_config(spec)
    assert caught.value.hint == f"did you mean {hint}?"


def test_a_file_whose_name_has_a_colon_is_found(tmp_path):
    path = write(tmp_path, "seed: 7\n", "a:b.yaml")
    assert load_config(path).seed == 7


@pytest.mark.parametrize(
    "spec", [f"{name}:{variant}" for name in preset_names() for variant in variant_names(name)]
)
def test_every_variant_of_a_preset_loads_and_changes_it(spec):
    assert load_config(spec) != load_config(spec.partition(":")[0])
