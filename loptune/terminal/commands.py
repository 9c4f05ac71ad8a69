"""Define commands as typed functions: their signatures determine options, help, ``--json`` and MCP
tools.

A command is a function that returns data, for example:

    def noise(
        space: Annotated[str, Option("search space whose program runs")],
        *,
        seeds: Annotated[Count, Option("number of seeds")] = 5,
    ) -> NoiseReport:

Parameters before the ``*`` are operands of the command line, all other parameters are options. A
bool is a flag, a ``Literal`` has choices, and the bounds of a pydantic ``Field`` are checked on the
command line and for tools. The first sentence of the docstring is used in the list of commands, the
first paragraph as the description. A quoted annotation is a type for calls from Python; the command
line passes text, or the type of the default.
"""

import argparse
import inspect
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ForwardRef, Literal, Union, get_args, get_origin

from loptune.terminal.arguments import Commands, add_json
from loptune.terminal.table import print_json

_REQUIRED = inspect.Parameter.empty
_SIMPLE = (bool, int, float, str, Path)


@dataclass(frozen=True)
class Option:
    """The command-line properties of a parameter, in addition to its type."""

    help: str
    group: str = ""  # heading on the help screen
    metavar: str | None = None
    # choice that has its own flag -> help text of the flag
    flags: Mapping[str, str] = field(default_factory=dict)
    excludes: str = ""  # group of mutually exclusive options
    takes_rest: bool = False  # takes all remaining arguments
    repeated: bool = False  # takes one value and may be repeated
    may_be_empty: bool = False  # the flag may have no values, which gives an empty list
    short: str = ""  # a second flag, such as -k
    separated: bool = False  # comma-separated values; repeated options are joined
    is_path: bool = False  # the value is the path of a file or folder
    dest: str = ""  # attribute of the parsed arguments, if it differs from the parameter's name


RunsDir = Annotated[Path, Option("folder that contains all runs", is_path=True)]
AcceptChanges = Annotated[
    bool, Option("continue even if data, reward or rule files have changed, and record the changes")
]


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A parameter of a command."""

    name: str
    option: Option
    annotation: Any  # type annotation without the Option
    kind: type  # type of a value on the command line
    choices: tuple[str, ...] = ()
    is_list: bool = False
    bounds: tuple[Any, ...] = ()
    default: Any = _REQUIRED
    is_operand: bool = False

    @property
    def dest(self) -> str:
        """The attribute of the parsed arguments."""
        return self.option.dest or self.name

    @property
    def is_required(self) -> bool:
        """Whether the parameter has no default."""
        return self.default is _REQUIRED

    def read(self, text: str) -> Any:
        """Parse an argument.

        Raises:
            argparse.ArgumentTypeError: the value is out of bounds.
            ValueError: the text cannot be converted to the argument's type.
        """
        value = self.kind(text)
        for bound in self.bounds:
            fault = _fault(value, bound)
            if fault:
                raise argparse.ArgumentTypeError(f"must be {fault}, got {text}")
        return value


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that calls a function.

    Args:
        function: returns the result.
        show: prints the result as text.
        fields: converts the result to JSON values; None: the command has no ``--json``.
        example: a command line.
        exit_code: returns the exit status for a result.
        defaults: parameter -> default on the command line, if it differs from the function's
            default.
        epilog: text below the example.
    """

    function: Callable[..., Any]
    show: Callable[[Any], None]
    fields: Callable[[Any], Any] | None
    example: str
    exit_code: Callable[[Any], int] = lambda result: 0
    defaults: Mapping[str, Any] = field(default_factory=dict)
    epilog: str = ""

    @property
    def name(self) -> str:
        """The name on the command line."""
        return self.function.__name__.strip("_").replace("_", "-")

    @property
    def arguments(self) -> list[Argument]:
        """The parameters of the function."""
        return [
            _argument(parameter)
            for parameter in inspect.signature(self.function).parameters.values()
        ]

    @property
    def description(self) -> str:
        """The first paragraph of the docstring."""
        return description_of(self.function)

    def call(self, arguments: argparse.Namespace) -> int:
        """Call the function with parsed arguments, print its result and return the exit status."""
        values = {each.name: getattr(arguments, each.dest) for each in self.arguments}
        result = self.function(**values)
        if self.fields is not None and arguments.json:
            print_json(self.fields(result))
        else:
            self.show(result)
        return self.exit_code(result)


def printing_command(
    function: Callable[..., Any], example: str, exit_code: Callable[[Any], int] = int
) -> Command:
    """Return the command for a function that prints while it runs. By default, the function returns
    the exit status.
    """
    return Command(
        function=function,
        show=lambda result: None,
        fields=None,
        example=example,
        exit_code=exit_code,
    )


def description_of(function: Callable[..., Any]) -> str:
    """Return the first paragraph of a docstring as one line."""
    paragraph = inspect.cleandoc(function.__doc__ or "").split("\n\n")[0]
    return " ".join(paragraph.split()).replace("``", "`")


def first_sentence(text: str) -> str:
    """Return the first sentence without its capital letter and period, for the list of commands."""
    sentence = re.split(r"(?<=\.)\s|:\s", text, maxsplit=1)[0].rstrip(".")
    return sentence[:1].lower() + sentence[1:]


def add_command(commands: Commands, command: Command) -> argparse.ArgumentParser:
    """Add a command to a parser, and return the command's own parser."""
    text = command.description.replace("%", "%%")
    epilog = f"example:\n  {command.example}"
    if command.epilog:
        epilog += f"\n\n{command.epilog}"
    parser = commands.add_parser(
        command.name,
        help=first_sentence(text),
        description=text,
        epilog=epilog,
        formatter_class=HelpFormatter,
    )
    parser.set_defaults(command=command.call)
    groups: dict[str, Any] = {"": parser}
    exclusive: dict[str, Any] = {}
    for argument in command.arguments:
        option = argument.option
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        place = groups[option.group]
        if option.excludes:
            if option.excludes not in exclusive:
                exclusive[option.excludes] = place.add_mutually_exclusive_group()
            place = exclusive[option.excludes]
        default = command.defaults.get(argument.name, argument.default)
        _add_argument(place, argument, default)
    if command.fields is not None:
        add_json(parser)
    return parser


class HelpFormatter(argparse.HelpFormatter):
    """Formatter that wraps the description but keeps the line breaks of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = []
        for paragraph in text.split("\n\n"):
            if paragraph.startswith("example"):
                paragraphs.append(paragraph)
            else:
                paragraphs.append(super()._fill_text(paragraph, width, indent))
        return "\n\n".join(paragraphs)


class _Accumulate(argparse.Action):
    """Joins the values of a repeated option; argparse would keep only the last ones."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Append the values to the values of earlier occurrences."""
        before = vars(namespace).setdefault("_given", {})
        if self.nargs is None:  # comma-separated text
            joined: Any = ",".join([*before.get(self.dest, []), values])
            before[self.dest] = [joined]
        else:
            joined = [*before.get(self.dest, []), *values]
            before[self.dest] = joined
        setattr(namespace, self.dest, joined)


def _add_argument(place: Any, argument: Argument, default: Any) -> None:
    """Add a parameter to a parser or a group."""
    option = argument.option
    text = option.help + _default_text(option.help, default)
    words: dict[str, Any] = {"help": text.replace("%", "%%"), "metavar": option.metavar}
    if argument.is_operand:
        if argument.choices:
            words["choices"] = argument.choices
            del words["metavar"]
        if argument.is_list:
            words |= {"nargs": "*", "default": []}
        elif default is not _REQUIRED:
            words |= {"nargs": "?", "default": default}
        place.add_argument(argument.name, type=argument.read, **words)
        return
    flag = f"--{argument.name.replace('_', '-')}"
    if option.flags:
        choices = place.add_mutually_exclusive_group()
        for choice, choice_help in option.flags.items():
            choices.add_argument(
                f"--{choice}",
                dest=argument.dest,
                action="store_const",
                const=choice,
                default=default,
                help=choice_help.replace("%", "%%"),
            )
        return
    words |= {"dest": argument.dest, "default": None if default is _REQUIRED else default}
    words["required"] = argument.is_required and default is _REQUIRED
    if argument.kind is bool:
        del words["metavar"]
        place.add_argument(flag, action="store_true", **words)
        return
    if argument.choices:
        words["choices"] = argument.choices
        del words["metavar"]
    if option.takes_rest:
        words["nargs"] = argparse.REMAINDER
    elif option.may_be_empty:
        words["nargs"] = "*"
    elif argument.is_list and not option.repeated:
        words |= {"nargs": "+", "action": _Accumulate}
    elif option.separated:
        words["action"] = _Accumulate
    elif option.repeated:
        words["action"] = "append"
    flags = [option.short, flag] if option.short else [flag]
    place.add_argument(*flags, type=argument.read, **words)


def _default_text(help_text: str, default: Any) -> str:
    """Return the text for the default value, unless the help mentions a default."""
    if isinstance(default, bool) or not isinstance(default, (int, float, str, Path)):
        return ""
    if default == "" or "(default:" in help_text:
        return ""
    shown = f"{default:g}" if isinstance(default, float) else default
    return f" (default: {shown})"


def _argument(parameter: inspect.Parameter) -> Argument:
    """Return the argument that a parameter describes.

    Raises:
        TypeError: the parameter has no `Option`, or its type cannot be used on a command line.
    """
    details = list(_details(parameter.annotation))
    options = [each for each in details if isinstance(each, Option)]
    if len(options) != 1:
        raise TypeError(f"parameter {parameter.name} must have one Option, got {len(options)}")
    kind, choices, is_list = _kind(parameter.annotation, parameter.default)
    bounds: list[Any] = []
    for each in details:
        bounds += getattr(each, "metadata", [])
    return Argument(
        name=parameter.name,
        option=options[0],
        annotation=_tool_annotation(parameter.annotation, kind),
        kind=kind,
        choices=choices,
        is_list=is_list,
        bounds=tuple(bounds),
        default=parameter.default,
        is_operand=parameter.kind is not inspect.Parameter.KEYWORD_ONLY,
    )


def _details(annotation: Any) -> Iterator[Any]:
    """Yield the metadata that ``Annotated`` adds to a type and its parts."""
    if get_origin(annotation) is Annotated:
        yield from annotation.__metadata__
        yield from _details(annotation.__origin__)
    elif _is_union(annotation):
        for part in get_args(annotation):
            yield from _details(part)


def _kind(annotation: Any, default: Any) -> tuple[type, tuple[str, ...], bool]:
    """Return the type of an argument, its choices, and whether it takes several values.

    Raises:
        TypeError: the type cannot be used on a command line.
    """
    if get_origin(annotation) is Annotated:
        return _kind(annotation.__origin__, default)
    if isinstance(annotation, ForwardRef):
        return (str if default in (_REQUIRED, None) else type(default)), (), False
    if get_origin(annotation) is Literal:
        return str, get_args(annotation), False
    if _is_union(annotation):
        parts = [part for part in get_args(annotation) if part is not types.NoneType]
        if str in parts:
            return str, (), False
        if len(parts) == 1:
            return _kind(parts[0], default)
    origin = get_origin(annotation)
    if inspect.isclass(origin) and issubclass(list, origin):
        kind, choices, _ = _kind(get_args(annotation)[0], _REQUIRED)
        return kind, choices, True
    if annotation in _SIMPLE:
        return annotation, (), False
    raise TypeError(f"{annotation} cannot be used on a command line")


def _tool_annotation(annotation: Any, kind: type) -> Any:
    """Return the annotation for a tool, which passes JSON."""
    if get_origin(annotation) is not Annotated:
        return annotation
    inner = annotation.__origin__
    if isinstance(inner, ForwardRef):
        inner = kind
    for detail in annotation.__metadata__:
        if not isinstance(detail, Option):
            inner = Annotated[inner, detail]
    return inner


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _fault(value: Any, bound: Any) -> str:
    """Return the bound that a value violates, or an empty string. NaN and infinity violate every
    bound.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    limits: dict[str, tuple[Callable[[Any], bool], str]] = {
        "ge": (lambda limit: value >= limit, "at least"),
        "gt": (lambda limit: value > limit, "a number above"),
        "le": (lambda limit: value <= limit, "at most"),
        "lt": (lambda limit: value < limit, "a number below"),
    }
    for name, (holds, words) in limits.items():
        limit = getattr(bound, name, None)
        if limit is not None and not holds(limit):
            return f"{words} {limit}"
    return ""
