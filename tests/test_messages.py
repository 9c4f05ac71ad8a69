"""Every command and option that a message of ours names can be typed; the wording is reviewed."""

import argparse
import ast
import re
from functools import cache

import sweep.cli
import trainer.cli
from docs.generate import trainer_command
from tests.paths import ROOT
from tests.wording import SNAPSHOT, snapshot

PACKAGES = ("trainer", "sweep", "dashboards", "rewards", "loptune")
COMMAND = re.compile(r"(?:^|`)(trainer|sweep) ([a-z]+)([^`;,]*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# of torchrun, Slurm, Ray, argparse, hf, pip, nvidia-smi, Optuna, vLLM and a user's own program
NOT_OURS = {
    "--nproc-per-node",
    "--shutdown-timeout",
    "--gpus-per-node",
    "--gpu-bind",
    "--head",
    "--help",
    "--local-dir",
    "--no-deps",
    "--wait",  # of sbatch
}
NOT_OURS |= {
    "--lifespan",
    "--storage",
    "--flag",
    "--format",
    "--query-gpu",
    "--logprobs-mode",
    "--dtype",
    "--weight-transfer-config",
    "--shm-size",
}


def options_of(parser):
    """The options of a command and of its own commands."""
    words = {word for action in parser._actions for word in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words = words.union(*map(options_of, action.choices.values()))
    return words


@cache
def commands(program):
    """Command -> its options."""
    if program == "trainer":
        return {name: options_of(trainer_command(name)) for name in trainer.cli.COMMANDS}
    (choices,) = [
        action
        for action in sweep.cli.build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    return {name: options_of(parser) for name, parser in choices.choices.items()}


def texts(tree):
    """The strings of a module, values in them as X; docstrings left out."""
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values
            )
        elif isinstance(node, ast.Constant) and id(node) not in inside | docs:
            yield str(node.value)


def test_what_messages_name_can_be_typed():
    wrong = []
    both = [*commands("trainer").values(), *commands("sweep").values()]
    options = NOT_OURS.union(*both)
    messages = 0
    for path in (file for package in PACKAGES for file in ROOT.glob(f"{package}/**/*.py")):
        for text in texts(ast.parse(path.read_text(encoding="utf-8"))):
            if " " not in text:  # a word of a command line
                continue
            wrong += [(path.name, word) for word in OPTION.findall(text) if word not in options]
            for program, command, rest in COMMAND.findall(text):
                messages += 1
                of_command = commands(program).get(command)
                words = {*OPTION.findall(rest)}
                if of_command is None or not words <= of_command | NOT_OURS:
                    wrong.append((path.name, f"{program} {command}{rest}"))
    assert wrong == [], wrong
    assert messages > 40


def test_the_wording_of_messages_is_the_reviewed_one():
    written = SNAPSHOT.read_text(encoding="utf-8")
    assert written == snapshot(), "run python -m tests.wording, and review the diff"


BRACES = re.compile(r"\{([a-z_]\w*)[^{}\s]*\}")
# of prompt templates, of judge's name of a seed, and of patterns
ON_PURPOSE = {"{question}", "{system}", "{seed}", "{part}", "{message}"}


def test_no_text_names_a_variable_in_braces_without_being_an_f_string():
    found = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(function, ast.FunctionDef):
                    found += [f"{path.name}: {text}" for text in _forgotten(function)]
    assert found == []


def _forgotten(function):
    """Yield the texts of a function that have a name of its variables in braces."""
    names = {each.id for each in ast.walk(function) if isinstance(each, ast.Name)}
    formatted = set()
    for call in ast.walk(function):
        method = call.func if isinstance(call, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr == "format":
            formatted.update(ast.walk(method))
    for text in ast.walk(function):
        is_text = isinstance(text, ast.Constant) and isinstance(text.value, str)
        if not is_text or text in formatted or text.value == ast.get_docstring(function, False):
            continue
        for match in BRACES.finditer(text.value):
            if match[1] in names and match[0] not in ON_PURPOSE:
                yield match[0]
