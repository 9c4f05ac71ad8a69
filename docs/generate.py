"""Write the reference pages that are generated from the code: `python docs/generate.py`. A test
checks that they are up to date.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import sweep.cli
import trainer.cli
from loptune.declared_metrics import METRIC_FAMILIES, METRICS
from sweep.space.spec import SweepSpec
from trainer.commands.reference import _allowed, find_options

FOLDER = Path(__file__).resolve().parent / "reference"
NOTE = "<!-- Written by docs/generate.py from the code; edit the code, not this page. -->\n"


def pages() -> dict[str, str]:
    """Return the text of every generated page by its file name."""
    return {
        "command_line.md": command_line(),
        "run_keys.md": run_keys(),
        "space_keys.md": space_keys(),
        "metrics.md": metrics(),
    }


def command_line() -> str:
    """Return the page of all commands of both programs, with their arguments."""
    lines = [
        "# Command line\n",
        NOTE,
        "`trainer` trains one policy, and `sweep` compares many training runs. `COMMAND --help` "
        "prints the options",
        "of a command. Both programs have the same "
        "[exit codes](../troubleshooting.md#exit-codes).\n",
        "Every command also takes `--quiet` (print only results, warnings and errors) or "
        "`--verbose` (also print",
        "log messages at level DEBUG and above). [Output](../troubleshooting.md#output) lists what "
        "goes to stdout and",
        "to stderr.\n",
    ]
    for program, parser in (
        ("trainer", trainer.cli.build_parser()),
        ("sweep", sweep.cli.build_parser()),
    ):
        lines += [f"## {program}\n", f"{parser.description}\n"]
        (commands,) = _subcommands(parser)
        for choice in commands._choices_actions:
            command = commands.choices[choice.dest]
            if program == "trainer":
                command = trainer_command(choice.dest)
            lines += _command(f"{program} {choice.dest}", command, choice.help or "")
    return _joined(lines)


def _command(name: str, command: argparse.ArgumentParser, text: str) -> list[str]:
    """Return the lines of a command, followed by the lines of its subcommands."""
    lines = [f"### {name}\n", f"{(command.description or _sentence(text)) % {}}\n"]
    if (command.epilog or "").startswith("example:"):
        lines.append(f"    {(command.epilog or '').splitlines()[1].strip()}\n")
    parts = _subcommands(command)
    if not parts:
        return [*lines, *_arguments(command), ""]
    for part in parts:
        for choice in part._choices_actions:
            lines += _command(f"{name} {choice.dest}", part.choices[choice.dest], choice.help or "")
    return lines


def _subcommands(
    parser: argparse.ArgumentParser,
) -> "list[argparse._SubParsersAction[argparse.ArgumentParser]]":
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]


def trainer_command(name: str) -> argparse.ArgumentParser:
    """Return the parser of a trainer command. It has its arguments only when the command is
    named.
    """
    (commands,) = _subcommands(trainer.cli.build_parser([name]))
    return commands.choices[name]


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        names = ", ".join(f"`{name}`" for name in action.option_strings)
        metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        if not names:
            names = f"`{action.metavar or action.dest}`"
        elif action.choices:
            names += f" `{{{','.join(map(str, action.choices))}}}`"
        elif action.nargs != 0:
            names += f" `{metavar}`"
        required = " (required)" if action.required and action.option_strings else ""
        rows.append(f"| {_cell(names)}{required} | {_cell((action.help or '') % vars(action))} |")
    if rows:
        yield from ["| Argument | Meaning |", "|---|---|", *rows]


def run_keys() -> str:
    """Return the page of all keys of a run file."""
    lines = [
        "# Run keys\n",
        NOTE,
        "A key is set in a run file, or on the command line as `key=value`. `trainer options WORD` "
        "prints the keys",
        "with a word in their names. If a key is a parameter of an update rule, its meaning starts "
        "with the name of",
        "the rule.\n",
    ]
    for section, options in groupby(
        find_options(), key=lambda option: option.key.rpartition(".")[0].partition(".")[0]
    ):
        lines += [
            f"## {section or 'run'}\n",
            "| Key | Default | Values | Meaning |",
            "|---|---|---|---|",
        ]
        for option in options:
            lines.append(
                _key_row(option.key, _default(option.default), option.allowed, option.description)
            )
        lines.append("")
    return _joined(lines)


def space_keys() -> str:
    """Return the page of all keys of a search space."""
    lines = [
        "# Space keys\n",
        NOTE,
        "This page lists all keys of a search space. [Search spaces](search_space.md) shows how "
        "the keys work",
        "together. `sweep schema` prints them as a JSON Schema, with which an editor can complete "
        "and check them.\n",
        "| Key | Default | Values | Meaning |",
        "|---|---|---|---|",
        *_space_rows(SweepSpec.model_json_schema(), SweepSpec.model_json_schema()["$defs"], ""),
    ]
    return _joined(lines)


def _space_rows(schema: Mapping[str, Any], parts: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for name, field in schema["properties"].items():
        section = _section(field, parts)
        key = prefix + name
        # keys that only the sweep's own copy of its space has
        if key in ("trainer.config", "trainer.held_out_set"):
            continue
        if section and key != "program.tracking":
            yield from _space_rows(section, parts, f"{key}.")
            continue
        default = (
            "required" if name in schema.get("required", ()) else _default(field.get("default"))
        )
        yield _key_row(key, default, _values(key, field), field.get("description", ""))


def _section(field: Mapping[str, Any], parts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the section that is the value of a key; None for a plain value."""
    for choice in (field, *field.get("anyOf", ())):
        if "$ref" in choice:
            section: Mapping[str, Any] = parts[choice["$ref"].rpartition("/")[2]]
            return section if "properties" in section else None
    return None


def _values(key: str, field: Mapping[str, Any]) -> str:
    """Return the allowed values of a key. Values that the schema leaves open are described here."""
    described = {
        "trainer.overrides": "key -> value",
        "program.defaults": "key -> value",
        "program.held_out": "key -> value",
        "program.tracking": "keys of a run's `tracking`",
        "parameters": "key -> [range](search_space.md#parameters)",
        "baselines": "list of key -> value",
    }
    return described[key] if key in described else _allowed(field)


def metrics() -> str:
    """Return the page of all metrics."""
    families = [replace(metric, name=f"{metric.name}*") for metric in METRIC_FAMILIES.values()]
    lines = [
        "# Metrics\n",
        NOTE,
        "Every metric is written to `metrics.jsonl` in the run's folder, and to MLflow under the "
        "same name. `trainer",
        'metrics WORD` prints the metrics with a word in their names. The column "Over ranks" '
        "shows how the values",
        "of several ranks are combined; a mean is taken over the completions or tokens of all "
        "ranks. In a name, `*`",
        "stands for a part that comes from the data or the configuration.\n",
    ]
    declared = sorted(
        [*METRICS.values(), *families], key=lambda metric: metric.name.partition("/")[0]
    )
    for group, of_group in groupby(declared, key=lambda metric: metric.name.partition("/")[0]):
        lines += [f"## {group}\n", "| Metric | Unit | Over ranks | Formula |", "|---|---|---|---|"]
        for metric in of_group:
            formula = _cell(metric.formula)
            lines.append(f"| `{metric.name}` | {metric.unit} | {metric.reduction} | {formula} |")
        lines.append("")
    return _joined(lines)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _key_row(key: str, default: str, values: str, meaning: str) -> str:
    return f"| `{key}` | {_cell(default)} | {_cell(values)} | {_cell(meaning)} |"


def _default(value: Any) -> str:
    return "none" if value in (None, [], {}) else f"`{json.dumps(value)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _joined(lines: list[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
