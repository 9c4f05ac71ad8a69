import pytest

from tests.tables import table
from trainer.commands.reference import find_options
from trainer.config.evaluation import OVERRIDABLE_PER_SET
from trainer.config.schema import dotted_keys
from trainer.rules.kinds import KINDS


def by_key(word=""):
    return {option.key: (option.allowed, option.default) for option in find_options(word)}


def test_every_key_is_listed_and_those_of_datasets():
    options = by_key()
    assert set(dotted_keys()) <= set(options)
    assert set(options) - set(dotted_keys()) == {
        f"{place}.{field}"
        for place in ("data.train", "evaluation.sets.NAME")
        for field in ("source", "name", "split", "columns", "people", "digits", "size", "limit")
    } | {
        f"evaluation.sets.NAME.{field}"
        for field in (*OVERRIDABLE_PER_SET, "task", "prompt_format", "reward")
    } | {
        f"{kind.key}.{parameter}"
        for kind in KINDS.values()
        for rule in kind.registry.values()
        for parameter in rule.model_fields
        if parameter != "name"
    }


def test_a_parameter_of_several_rules_is_listed_for_each():
    defaults = [option.default for option in find_options("clip_ratio_low")]
    assert defaults[:3] == [0.2, 3e-4, 1.0]  # clipped, GSPO, CISPO
    assert len(defaults) == 3 + 4  # and Clip-Cov, Lp-Reg, STAPO, STARE


@pytest.mark.parametrize(("key", "allowed", "default"), table("allowed_values"))
def test_allowed_values_and_defaults(key, allowed, default):
    assert by_key(key)[key] == (allowed, default)


def test_a_key_is_found_by_any_part_of_its_name(typed):
    lines = typed("trainer options clip").splitlines()
    keys = [
        "algorithm.loss.clip_ratio_low",
        "algorithm.loss.clip_ratio_high",
        "algorithm.loss.dual_clip",
        "algorithm.loss.clip_low",
        "algorithm.loss.clip_high",
    ]
    assert (
        list(dict.fromkeys(line.split()[0] for line in lines if not line.startswith(" "))) == keys
    )
    assert max(map(len, lines)) <= 100


def test_a_word_that_no_key_has(typed):
    hint = typed("trainer options clip_hihg", code=2).splitlines()[-1]
    assert hint == "next:  did you mean algorithm.loss.clip_high?"


def test_metrics_are_found_and_printed(typed):
    assert "policy/kl  [nats; mean over ranks]" in typed("trainer metrics kl").splitlines()
    assert "no_such" in typed("trainer metrics no_such", code=2)
