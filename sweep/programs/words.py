"""Words of a command line with placeholders for values: docs/guides/any_trainer.md."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.config.yaml_document import nearest

_NAME = r"[\w./@+~-]+"  # what a placeholder may look like; Hydra's keys have + @ ~
_UNKNOWN = re.compile(rf"(?<!\$)\{{({_NAME})\}}")  # not a shell's ${NAME}
_LITERAL = re.compile(rf"(?<!\$)\{{\{{({_NAME})\}}\}}")  # {{print}}: the text {print}
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "ash")
_COMMENT_BEFORE = " \t\n;|&("  # a # behind one of these begins a comment


def fill(command: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Return the words with each placeholder replaced by its value's text."""
    texts = {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()
    }
    places = re.compile(rf"{_LITERAL.pattern}|{_place(values)}")
    scripts = _shell_scripts(command)
    words = []
    for index, word in enumerate(command):
        flag = _flag(values).fullmatch(word)
        if flag:
            words += _flag_words(flag[2], values[flag[1]], texts[flag[1]])
            continue
        is_script = index in scripts

        def text(place: re.Match[str], is_script: bool = is_script) -> str:
            if place[1] is not None:
                return f"{{{place[1]}}}"
            return shlex.quote(texts[place[2]]) if is_script else texts[place[2]]

        words.append(places.sub(text, word))
    return words


def named_keys(command: Sequence[str], keys: Sequence[str]) -> set[str]:
    """Return the keys that a command names."""
    flags = [flag[1] for word in command for flag in [_flag(keys).fullmatch(word)] if flag]
    return {*flags, *(place[1] for word in command for place in re.finditer(_place(keys), word))}


def check_words(command: Sequence[str], keys: Sequence[str]) -> None:
    """Refuse placeholders that would not be replaced, or not safely.

    Raises:
        ValueError: the first error.
    """
    scripts = _shell_scripts(command)
    nearly = re.compile(rf"(?<!\$)\{{\{{?\s*({_any(keys)})\s*([:!?\[][^{{}}]*)?\}}")
    for index, word in enumerate(command):
        if index not in scripts and _flag(keys).fullmatch(word):
            continue
        for near in nearly.finditer(word):
            if near[0] == f"{{{near[1]}}}":
                continue
            if "?" in (near[2] or ""):
                raise ValueError(
                    f"command: {near[0]} is not replaced: a flag is a whole word of the command, "
                    f"such as '{{{near[1]}?--flag}}'"
                )
            raise ValueError(f"command: {near[0]} is not replaced: write {{{near[1]}}}")
        for place in _UNKNOWN.finditer(_LITERAL.sub("", word)):
            if place[1] not in keys:
                raise ValueError(
                    f"command: unknown key {place[0]}: {nearest(place[1], keys)} "
                    f"(for literal braces, write {{{place[0]}}})"
                )
        if index in scripts:
            _check_script(word, keys)


def _check_script(script: str, keys: Sequence[str]) -> None:
    quoted = set(_quoted(script))
    for place in re.finditer(_place(keys), script):
        if place.start() in quoted:
            raise ValueError(
                f"command: {place[0]} stands inside quotes, a comment or a substitution of a "
                f"shell's script: write {place[0]} outside of them, because its value is quoted "
                "when it is put in"
            )


def _quoted(script: str) -> Iterator[int]:
    """Yield the positions at which a quoted value would not stay one word. What is hard to follow
    (a substitution inside quotes, a here-document) counts as quoted up to the end.
    """
    state = ""  # the character that ends it
    escapes = False  # whether a backslash counts in this state
    index = 0
    while index < len(script):
        character = script[index]
        rest = script[index:]
        if state:
            yield index
        if state == '"' and (rest.startswith("$(") or character == "`"):
            yield from range(index, len(script))
            return
        if character == "\\" and (not state or escapes):
            yield index + 1
            index += 2
            continue
        if state:
            if character == state:
                state = ""
        elif rest.startswith("<<") and not rest.startswith("<<<"):
            yield from range(index, len(script))
            return
        elif rest.startswith("<<<"):
            index += 2
        elif character in "'\"`":
            state = character
            escapes = character != "'" or script[:index].endswith("$")
        elif character == "#" and (index == 0 or script[index - 1] in _COMMENT_BEFORE):
            state, escapes = "\n", False
        index += 1


def _shell_scripts(command: Sequence[str]) -> set[int]:
    """Return the positions of words that a shell reads as its script: those behind `sh -c`."""
    scripts = set()
    for index, word in enumerate(command):
        if Path(word).name not in _SHELLS:
            continue
        reads_script = False
        position = index + 1
        while position < len(command) and command[position][:1] in ("-", "+"):
            option = command[position]
            position += 1
            if option == "--":
                break
            if option.startswith("--"):
                position += option in ("--rcfile", "--init-file")
                continue
            reads_script |= option[0] == "-" and "c" in option
            position += option.count("o") + option.count("O")  # -o pipefail
        if reads_script and position < len(command):
            scripts.add(position)
    return scripts


def _flag_words(flag: str, value: Any, text: str) -> list[str]:
    if value is None or value is False:
        return []
    return [flag] if value is True else [f"{flag}={text}"]


def _any(keys: Mapping[str, Any] | Sequence[str]) -> str:
    """Return a pattern of all keys, the longest first."""
    return "|".join(re.escape(key) for key in sorted(keys, key=len, reverse=True))


def _place(keys: Mapping[str, Any] | Sequence[str]) -> str:
    return rf"(?<!\$)\{{({_any(keys)})\}}"


def _flag(keys: Mapping[str, Any] | Sequence[str]) -> re.Pattern[str]:
    return re.compile(rf"\{{({_any(keys)})\?(--?[^\s{{}}=?]+)\}}")
