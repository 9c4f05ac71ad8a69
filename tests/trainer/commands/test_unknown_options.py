import argparse

import pytest

from loptune.errors import ConfigError
from loptune.terminal.arguments import parse_arguments
from sweep.cli import main as sweep
from trainer.cli import main as trainer
from trainer.config.schema import dotted_keys


def parse(*words):
    parser = argparse.ArgumentParser(prog="command")
    parser.add_argument("spec")
    parser.add_argument("--name")
    parser.add_argument("overrides", nargs="*")
    parse_arguments(parser, ["spec", *words], dotted_keys, override_prefix="trainer.")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--max_steps", "3"], "max_steps=3"),
        (["--max-steps=3"], "max_steps=3"),
        (["a=1", "--optim.lr", "1e-5", "--name", "x"], "optim.lr=1e-5"),
        (["--group_size"], "rollout.group_size=VALUE"),
    ],
)
def test_a_key_written_as_an_option_is_shown_as_an_override(words, meant):
    with pytest.raises(ConfigError) as caught:
        parse(*words)
    assert f"trainer.{meant}," in caught.value.hint


@pytest.mark.parametrize("main", [trainer, sweep])
def test_the_version_names_what_a_bug_report_needs(main, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("loptune 0.") and all(
        name in text for name in ("Python", "torch", "ray", "mlflow")
    )


@pytest.mark.parametrize(
    ("main", "words", "port"), [(sweep, ["ui", "x"], "0"), (trainer, ["serve", "tiny_kk"], "99999")]
)
def test_a_port_that_does_not_exist_is_refused(main, words, port, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*words, f"--port={port}"])
    assert ended.value.code == 2 and "argument --port: must be at" in capsys.readouterr().err
