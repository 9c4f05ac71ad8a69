"""Signatures of typed functions as command lines."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

import sweep.cli
import trainer.cli
from loptune.terminal.commands import Command, Option, add_command, first_sentence


@dataclass(frozen=True)
class Given:
    """What the function was called with."""

    values: dict


def many_kinds(  # noqa: PLR0913
    place: Annotated[str, Option("a place")],
    overrides: Annotated[Sequence[str], Option("settings")] = (),
    *,
    count: Annotated[Annotated[int, Field(ge=1)] | None, Option("a number of 100% of them")] = None,
    rate: Annotated[float, Option("a rate")] = 0.5,
    mode: Annotated[Literal["max", "min"], Option("a direction")] = "max",
    pairing: Annotated[
        Literal["auto", "paired", "unpaired"],
        Option("", flags={"paired": "by seed", "unpaired": "apart"}),
    ] = "auto",
    columns: Annotated[
        str | Sequence[str] | Mapping[str, str], Option("columns", separated=True)
    ] = "",
    rows: Annotated["str | Rows", Option("rows", group="rows", excludes="one")] = "",  # noqa: F821
    all_rows: Annotated["bool | Rows", Option("all", group="rows", excludes="one")] = False,  # noqa: F821
    output: Annotated[Path | None, Option("a folder", metavar="FOLDER")] = None,
    rest: Annotated[Sequence[str] | None, Option("words", takes_rest=True, dest="words")] = None,
) -> Given:
    """Collect what ``many-kinds`` was called with. A second sentence.

    A second paragraph.
    """
    return Given(locals())


def command(**options):
    return Command(
        function=many_kinds,
        show=print,
        fields=lambda given: given.values,
        example="program many-kinds here --count 2",
        **options,
    )


def parser_of(one):
    parser = argparse.ArgumentParser("program")
    add_command(parser.add_subparsers(), one)
    return parser


def called(line, **options):
    arguments = parser_of(command(**options)).parse_args(["many-kinds", *line.split()])
    given = []
    one = command(**{**options, "exit_code": lambda result: given.append(result) or 7})
    assert one.call(arguments) == 7
    return given[0].values


def test_defaults_are_the_functions_or_the_commands():
    values = called("here")
    assert values == many_kinds("here", []).values
    values = called("here", defaults={"output": Path("there")})
    assert values["output"] == Path("there")


def test_words_become_values_of_the_annotated_types():
    values = called(
        "here a=1 b=2 --count 3 --rate 0.25 --mode min --unpaired --columns x,y --all-rows "
        "--output out --rest --count 0"
    )
    assert values == {
        "place": "here",
        "overrides": ["a=1", "b=2"],
        "count": 3,
        "rate": 0.25,
        "mode": "min",
        "pairing": "unpaired",
        "columns": "x,y",
        "rows": "",
        "all_rows": True,
        "output": Path("out"),
        "rest": ["--count", "0"],
    }


def test_values_of_an_option_given_twice_are_joined():
    assert called("here --columns x,y --columns z")["columns"] == "x,y,z"
    assert called("here --columns x")["columns"] == "x"


@pytest.mark.parametrize(
    "line", ["", "here --count 0", "here --mode mean", "here --rows a --all-rows", "here --rate a"]
)
def test_what_the_types_exclude_is_refused(line, capsys):
    with pytest.raises(SystemExit) as ended:
        parser_of(command()).parse_args(["many-kinds", *line.split()])
    assert ended.value.code == 2
    assert "usage: program many-kinds" in capsys.readouterr().err


def test_help_has_description_groups_defaults_and_the_example(capsys):
    with pytest.raises(SystemExit):
        parser_of(command(epilog="Exit status 7.")).parse_args(["many-kinds", "--help"])
    text = capsys.readouterr().out
    assert "Collect what `many-kinds` was called with. A second sentence.\n" in text
    assert "A second paragraph" not in text
    assert "rows:\n  --rows" in text
    assert "a rate (default: 0.5)" in text
    assert "a number of 100% of them" in text
    assert text.endswith("example:\n  program many-kinds here --count 2\n\nExit status 7.\n")


def test_the_line_in_a_list_is_the_first_sentence():
    assert first_sentence("Run it. Then stop.") == "run it"
    assert first_sentence("Run a.yaml here.") == "run a.yaml here"


def test_a_parameter_without_an_option_is_an_error():
    def forgotten(place: str) -> None:
        """Return nothing."""

    with pytest.raises(TypeError, match="place"):
        _ = Command(function=forgotten, show=print, fields=None, example="").arguments


def test_options_that_repeat_may_be_empty_or_have_a_short_flag():
    def run(
        *,
        text: Annotated[list[str] | None, Option("texts", repeated=True)] = None,
        parts: Annotated[list[str] | None, Option("parts", may_be_empty=True)] = None,
        number: Annotated[int, Option("number", short="-k")] = 1,
    ) -> tuple:
        """Return what was given."""
        return text, parts, number

    given = []
    one = Command(function=run, show=given.append, fields=None, example="program run")
    parser = parser_of(one)
    for line in ("", "--text a --text b --parts -k 2", "--parts p q --number 3"):
        one.call(parser.parse_args(["run", *line.split()]))
    assert given == [(None, None, 1), (["a", "b"], [], 2), (None, ["p", "q"], 3)]


def test_every_command_says_what_it_does_and_shows_an_example():
    screens = 0
    parsers = [("trainer", trainer.cli.build_parser()), ("sweep", sweep.cli.build_parser())]
    while parsers:
        name, parser = parsers.pop()
        below = [
            (f"{name} {word}", command)
            for action in parser._actions
            if isinstance(action, argparse._SubParsersAction)
            for word, command in action.choices.items()
        ]
        parsers += below
        screens += 1
        assert parser.description, name
        assert below or f"example:\n  {name} " in f"{parser.epilog} ", name
    assert screens > 40
