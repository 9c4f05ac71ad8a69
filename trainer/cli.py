"""The ``trainer`` command: its subcommands and the modules that implement them."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from loptune.extras import require
from loptune.terminal.arguments import PAGES, parse_arguments, version_text
from loptune.terminal.commands import add_command
from loptune.terminal.completion import Completions, complete, words_to_complete
from loptune.terminal.interrupt import defer_interrupt
from loptune.terminal.logs import add_verbosity, set_up_logging
from loptune.terminal.main import run_main, world_size
from loptune.terminal.waiting import waiting_for_output
from trainer.config.extends import preset_specs
from trainer.config.schema import dotted_keys

_EXAMPLES = """\
examples, in the order of work:
  trainer init mine                        your own model, data and reward: files to start from
  trainer run tiny_kk --dry-run            a prompt, a scored completion, memory and steps
  trainer run tiny_kk algorithm.ar_alpha=0.3 --name ar
  trainer status ar                        from another terminal; after Ctrl-C: trainer resume ar
  trainer evaluate ar -k 8                 accuracy and pass@k, with intervals
  trainer export ar                        the model, for transformers, vLLM or the Hub
  trainer options learning rate            find a key, also by its name in another tool
"""
# Command -> module of trainer.commands that defines it, in the order of work.
COMMANDS = {
    "init": "init",
    "presets": "presets",
    "options": "reference",
    "metrics": "reference",
    "schema": "reference",
    "run": "start",
    "status": "runs",
    "ls": "runs",
    "resume": "start",
    "stop": "stop",
    "evaluate": "evaluate",
    "export": "export",
    "upload": "runs",
    "ui": "runs",
    "rehearse": "rehearse",
    "doctor": "doctor",
    "serve": "serve",
}
# command -> optional package that it needs
_NEEDED = {
    **dict.fromkeys(("run", "resume", "evaluate", "export", "rehearse"), "torch"),
    **dict.fromkeys(("ui", "upload"), "mlflow"),
}


def _runs(runs_dir: Path) -> list[str]:
    return [config.parent.name for config in runs_dir.glob("*/config.yaml")]


_COMPLETIONS: Completions = {
    "spec": lambda _: preset_specs(),
    "--spec": lambda _: preset_specs(),
    "word": lambda _: dotted_keys(),
    "metric": lambda _: _metrics(),
    "overrides": lambda _: [f"{key}=" for key in dotted_keys()],
    **dict.fromkeys(("name", "run", "model"), _runs),
}


def _metrics() -> list[str]:
    from loptune.declared_metrics import METRICS  # only during Tab completion

    return list(METRICS)


def _values(key: str) -> list[str]:
    from trainer.commands.reference import values_of  # only during Tab completion

    return values_of(key)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. With several ranks, exit the process with that code
    instead.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    code = run_main(lambda: _call(words))
    if world_size() > 1:
        # torch takes seconds to import
        from trainer.parallel.ranks import exit_rank, leave_ranks

        if code == 0:  # all other ranks are finishing, too
            leave_ranks()
        exit_rank(code)
    return code


def _call(words: Sequence[str]) -> int:
    parser = build_parser(words_to_complete() or words)
    complete(parser, _COMPLETIONS, _values)
    arguments = parse_arguments(parser, words, dotted_keys)
    set_up_logging(getattr(arguments, "verbosity", "normal"))
    if arguments.verb in _NEEDED:
        require(_NEEDED[arguments.verb], f"trainer {arguments.verb}")
    with waiting_for_output("working"):
        code: int = arguments.command(arguments)
    return code


def build_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Build the parser. If a command is given, only its module is imported, and the other commands
    have no arguments.
    """
    parser = argparse.ArgumentParser(
        prog="trainer",
        description="Train one policy with one update rule.",
        epilog=f"{_EXAMPLES}\n{PAGES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(json=False)
    parser.add_argument("--version", action="version", version=version_text())
    add_verbosity(parser, shown=True)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    given = next((word for word in words if not word.startswith("-")), None)
    for name, module in COMMANDS.items():
        if given in (None, name):
            with defer_interrupt():
                implementation = import_module(f"trainer.commands.{module}")
            command = add_command(commands, implementation.COMMANDS[name])
        else:
            command = commands.add_parser(name)
        add_verbosity(command)
        command.set_defaults(verb=name)
    return parser
