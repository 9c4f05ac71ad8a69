import argparse

import pytest

from loptune.errors import ConfigError
from loptune.terminal.arguments import parse_arguments
from trainer.config.schema import dotted_keys


@pytest.fixture
def parser():
    parser = argparse.ArgumentParser(prog="trainer")
    parser.add_argument("spec")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--name")
    return parser


def test_overrides_may_stand_before_and_after_options(parser):
    words = ["tiny_kk", "seed=1", "--name", "a", "optim.lr=1e-4", "max_steps=2"]
    arguments = parse_arguments(parser, words, dotted_keys)
    assert (arguments.spec, arguments.name) == ("tiny_kk", "a")
    assert arguments.overrides == ["seed=1", "optim.lr=1e-4", "max_steps=2"]


@pytest.mark.parametrize(("given", "hint"), [("--names=b", "--name?"), ("-z", "--help`")])
def test_an_option_that_is_not_there_is_refused(parser, given, hint):
    with pytest.raises(ConfigError) as caught:
        parse_arguments(parser, ["tiny_kk", "--name", "a", given], dotted_keys)
    assert caught.value.code == "unknown-option" and caught.value.hint.endswith(hint)
