"""Fill the placeholders in the arguments of a command line: docs/guides/any_trainer.md."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from loptune.section import refusal
from loptune.yaml_document import nearest
from sweep.programs.shell_words import code_words, quoted, scripts_of, unsafe_words

_NAME = r"[\w./@+~-]+"  # the form of a placeholder; Hydra's keys have + @ ~
_UNKNOWN = re.compile(rf"(?<!\$)\{{({_NAME})\}}")  # not a shell's ${NAME}
_LITERAL = re.compile(rf"(?<!\$)\{{\{{({_NAME})\}}\}}")  # {{print}}: the text {print}
# W&B's placeholders for all values at once
_ALL = ("${args}", "${args_no_boolean_flags}", "${args_no_hyphens}", "${args_json}")
# W&B's other placeholders, with advice on what to write instead
_NOT_OURS = {
    "${env}": "leave it out",
    "${interpreter}": "write python, which is the interpreter that runs the sweep",
    "${program}": "write the script's name, such as train.py",
    "${args_json_file}": "leave it out: the file is $LOPTUNE_CONFIG",
}
_WANDB = re.compile(r"\$\{(args\w*|env|interpreter|program|envvar:\w+)\}")
_OUT = "out"  # the trial folder, not one of the program's values
_BY_ARGUMENT = (
    "pass it as an argument: [bash, -c, 'COMMAND \"$1\"', _, '{KEY}'], or let a script file do it"
)


def fill(command: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Return the words with each placeholder replaced by its value's text."""
    texts = {key: _text_of(value) for key, value in values.items()}
    quoted_texts = {key: shlex.quote(text) for key, text in texts.items()}
    scripts = scripts_of(command)
    words = []
    for index, word in enumerate(command):
        flag = _flag(values).fullmatch(word)
        if word in _ALL:
            words += _all_words(word, _not_named(command, values), texts)
        elif flag:
            words += _flag_words(flag[2], values[flag[1]], texts[flag[1]])
        elif index in scripts:
            words.append(_fill_word(word, quoted_texts))
        else:
            words.append(_fill_word(word, texts))
    return words


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _fill_word(word: str, texts: Mapping[str, str]) -> str:
    """Replace the placeholders of a word, and ``{{NAME}}`` by ``{NAME}``."""

    def text(place: re.Match[str]) -> str:
        literal, key = place[1], place[2]
        if literal is not None:
            return f"{{{literal}}}"
        return texts[key]

    return re.sub(rf"{_LITERAL.pattern}|{_place(texts)}", text, word)


def _not_named(command: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values whose keys are not used in the command's other arguments."""
    others = [word for word in command if word not in _ALL]
    named = {_OUT, *named_keys(others, list(values))}
    return {key: values[key] for key in values if key not in named}


def named_keys(command: Sequence[str], keys: Sequence[str]) -> set[str]:
    """Return the keys that are used in a command."""
    if any(word in _ALL for word in command):
        return set(keys)
    named: set[str] = set()
    for word in command:
        flag = _flag(keys).fullmatch(word)
        if flag:
            named.add(flag[1])
        named.update(place[1] for place in re.finditer(_place(keys), word))
    return named


def check_words(command: Sequence[str], keys: Sequence[str], texts: Sequence[str] = ()) -> None:
    """Reject placeholders that would not be replaced, or that would be unsafe. ``texts`` are the
    keys whose values may be strings; numbers are safe everywhere.

    Raises:
        PydanticCustomError: the first error, with its code.
    """
    scripts = scripts_of(command)
    unsafe = unsafe_words(command)
    code = code_words(command)
    for index, word in enumerate(command):
        is_read = index in scripts or index in unsafe
        if not is_read and _flag(keys).fullmatch(word):
            continue
        _refuse_wandb_syntax(word, is_script=index in scripts)
        _refuse_misspelled(word, keys)
        _refuse_unknown_keys(word, keys)
        for place in re.finditer(_place(keys), word):
            if index in unsafe and place[1] in (*texts, _OUT):
                raise _unsafe(place[0], f"{unsafe[index]} would parse the value again")
            if index in code and place[1] in texts:
                raise _unsafe(place[0], f"the value would become {code[index]} code")
            if index in scripts and place.start() in set(quoted(word)):
                raise _unsafe(
                    place[0],
                    "it is inside quotes, a comment, arithmetic or a substitution of a shell "
                    "script",
                    f"write {place[0]} outside of them; loptune quotes the value",
                )


def _unsafe(place: str, why: str, hint: str = "") -> Exception:
    hint = hint or _BY_ARGUMENT.replace("{KEY}", place)
    return refusal("value-in-shell-text", f"command: {place} is not allowed here: {why}", hint)


def _refuse_wandb_syntax(word: str, is_script: bool) -> None:
    """Reject W&B's placeholders that loptune does not replace.

    Raises:
        PydanticCustomError: there is such a placeholder.
    """
    if word in _ALL:
        return
    for place in _WANDB.finditer(word):
        text, name = place[0], place[1]
        is_shell_variable = is_script and re.search(rf"\b{name}=", word)
        is_meant = text == word or name.startswith("args")
        if is_meant and not is_shell_variable:
            raise refusal(
                "wandb-word",
                f"command: {text} is W&B syntax",
                _NOT_OURS.get(text, f"write {', '.join(_ALL)} as a whole word, or {{KEY}}"),
            )


def _refuse_misspelled(word: str, keys: Sequence[str]) -> None:
    """Reject placeholders with a known key in a different form, such as ``{{ lr }}`` or
    ``{lr:g}``.

    Raises:
        PydanticCustomError: there is such a placeholder.
    """
    nearly = re.compile(rf"(?<!\$)\{{\{{?\s*({_any(keys)})\s*([:!?\[][^{{}}]*)?\}}")
    for near in nearly.finditer(word):
        if near[0] == f"{{{near[1]}}}":
            continue
        what = f"command: {near[0]} is not replaced"
        if "?" in (near[2] or ""):
            raise refusal(
                "flag-inside-word",
                what,
                f"a flag must be a separate word of the command, such as '{{{near[1]}?--flag}}'",
            )
        raise refusal("unreplaced-placeholder", what, f"write {{{near[1]}}}")


def _refuse_unknown_keys(word: str, keys: Sequence[str]) -> None:
    """Reject placeholders with a key that the program does not have.

    Raises:
        PydanticCustomError: there is such a placeholder.
    """
    for place in _UNKNOWN.finditer(_LITERAL.sub("", word)):
        if place[1] not in keys:
            raise refusal(
                "unknown-placeholder",
                f"command: unknown key {place[0]}",
                f"{nearest(place[1], keys)}; for another parameter, add its default to "
                f"program.defaults; for literal braces, write {{{place[0]}}}",
            )


def _all_words(word: str, values: Mapping[str, Any], texts: Mapping[str, str]) -> list[str]:
    """Return the arguments for all values in W&B's format."""
    if word == "${args_json}":
        return [json.dumps(dict(values))]
    words = []
    for key, value in values.items():
        if word == "${args_no_hyphens}":
            words.append(f"{key}={texts[key]}")
        elif word == "${args_no_boolean_flags}" and isinstance(value, bool):
            if value:
                words.append(f"--{key}")
        else:
            words.append(f"--{key}={texts[key]}")
    return words


def _flag_words(flag: str, value: Any, text: str) -> list[str]:
    if value is None or value is False:
        return []
    return [flag] if value is True else [f"{flag}={text}"]


def _any(keys: Mapping[str, Any] | Sequence[str]) -> str:
    """Return a pattern that matches any key, longest first."""
    return "|".join(re.escape(key) for key in sorted(keys, key=len, reverse=True))


def _place(keys: Mapping[str, Any] | Sequence[str]) -> str:
    return rf"(?<!\$)\{{({_any(keys)})\}}"


def _flag(keys: Mapping[str, Any] | Sequence[str]) -> re.Pattern[str]:
    return re.compile(rf"\{{({_any(keys)})\?(--?[^\s{{}}=?]+)\}}")
