"""Find the Python modules that a command line runs, with ``python -m`` or a launcher."""

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loptune.module_specs import module_spec

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
_LAUNCHING_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
)
_WITH_ARGUMENT = ("X", "W")  # Python options with an argument
# commands that run their remaining arguments in the same environment
_PREFIXES = (
    "env",
    "nice",
    "nohup",
    "timeout",
    "time",
    "stdbuf",
    "setsid",
    "ionice",
    "taskset",
    "numactl",
)
_NAME = re.compile(r"\w+(\.\w+)*")


@dataclass(frozen=True)
class RunModule:
    """A module that a command runs."""

    name: str
    is_checkable: bool  # whether it runs in the sweep's environment and can be looked up here


def run_modules(command: Sequence[str]) -> list[RunModule]:
    """Return the modules that a command line runs, in order."""
    modules = []
    for index, word in enumerate(command):
        name = Path(word).name
        if _PYTHON.fullmatch(name) or word == sys.executable:
            found = list(_behind_python(command[index + 1 :]))
        elif name in _LAUNCHERS:
            found = list(_behind_launcher(command[index + 1 :]))
        else:
            continue
        is_first = index == 0 or Path(command[0]).name in _PREFIXES
        is_checkable = (
            is_first
            and _is_of_this_environment(word)
            and not any(other.startswith("PYTHONPATH=") for other in command)
        )
        modules += [RunModule(each, is_checkable) for each in found if _NAME.fullmatch(each)]
        break  # the rest are arguments
    return modules


def is_importable(name: str, folder: Path) -> bool:
    """Return whether ``import NAME`` finds a module, without importing anything.

    ``folder`` is the working directory of the command.
    """
    return module_spec(name, folder) is not None


def find_module(name: str, folder: Path) -> str:
    """Return the module that ``python -m`` executes, without importing anything: the module itself,
    or the ``__main__`` of a package; empty if there is none.

    ``folder`` is the working directory of the command.
    """
    spec = module_spec(name, folder)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = module_spec(name, folder)
    return "" if spec is None else name


def _behind_python(words: Sequence[str]) -> Iterator[str]:
    position = 0
    while position < len(words) and words[position].startswith("-"):
        option = words[position]
        position += 1
        if option.startswith("--") or option == "-":
            continue
        for letter_index, letter in enumerate(option[1:], start=1):
            rest = option[letter_index + 1 :]
            if letter == "c":
                return
            if letter == "m":
                module = rest or "".join(words[position : position + 1])
                yield module
                if module in _LAUNCHING_MODULES:
                    yield from _behind_launcher(words[position + (not rest) :])
                return
            if letter in _WITH_ARGUMENT:
                position += not rest
                break


def _behind_launcher(words: Sequence[str]) -> Iterator[str]:
    """Yield the module after ``-m`` or ``--module``; nothing if a script comes first."""
    for index, word in enumerate(words):
        if word in ("-m", "--module"):
            yield "".join(words[index + 1 : index + 2])
            return
        if word.endswith((".py", ".sh")):
            return


def _is_of_this_environment(word: str) -> bool:
    if word == "python":  # stands for the interpreter of the sweep
        return True
    path = shutil.which(word)
    return path is not None and Path(path).absolute().parent == Path(sys.executable).parent
