"""Recognize ranges in the syntax of other tools (W&B sweeps, Optuna, Ray Tune, Hydra's sweepers),
so that the error names the range to write. docs/reference/search_space.md has the table.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from loptune.errors import shortened

_TABLE = "docs/reference/search_space.md#ranges-of-other-tools has all forms"
_CALL = re.compile(r"(?:\w+\.)*(\w+)\(.*\)", re.DOTALL)  # tune.loguniform(1e-6, 1e-3)
_LONGEST = 200  # maximum number of characters of a suggested value

# name of a range in another tool -> loptune's name
_OURS = {
    "choice: [...]": (
        "values choices options categorical categorical_w_probabilities suggest_categorical grid "
        "grid_search"
    ),
    "value: X": "constant",
    "uniform: [LOW, HIGH]": "float interval suggest_float suggest_uniform",
    "quniform: [LOW, HIGH, STEP]": "q_uniform suggest_discrete_uniform discrete_uniform",
    "loguniform: [LOW, HIGH]": (
        "log_uniform log_uniform_values logfloat log_float qloguniform reverse_log_uniform "
        "suggest_loguniform tag"
    ),
    "int: [LOW, HIGH], which includes HIGH": (
        "int_uniform integer qrandint randint range suggest_int"
    ),
    "logint: [LOW, HIGH], which includes HIGH": (
        "log_int loginteger lograndint qlograndint q_log_uniform q_log_uniform_values"
    ),
    "uniform: [LOW, HIGH] or loguniform: [LOW, HIGH]; loptune has no such range": (
        "normal q_normal log_normal q_log_normal lognormal randn qrandn beta q_beta "
        "inv_log_uniform inv_log_uniform_values sample_from"
    ),
}
_BY_WORD = {word: ours for ours, words in _OURS.items() for word in words.split()}
_ON_LOG_SCALE = {
    "uniform: [LOW, HIGH]": "loguniform: [LOW, HIGH]",
    "int: [LOW, HIGH], which includes HIGH": "logint: [LOW, HIGH], which includes HIGH",
}
# W&B and Optuna write a range as a mapping; these are the keys of its bounds and its kind
_BOUNDS = ("min", "max", "low", "high", "lower", "upper", "lower_bound", "upper_bound")
_KIND = ("distribution", "type", "sampling")


def our_form(written: Any, known: Sequence[str]) -> tuple[str, str] | None:
    """Return the fault of a bare value or of a range in another tool's syntax, and how to write it
    in loptune's syntax; None for any other range. ``known`` are the keys of loptune's ranges.
    """
    if isinstance(written, list):
        return "a bare list is not a range", f"write {_show('choice', written)}"
    if isinstance(written, str):
        call = _CALL.fullmatch(written.strip())
        if call is not None:
            return _form_of_call(written, call[1], known)
    if not isinstance(written, Mapping):
        return "a bare value is not a range", f"write {_show('value', written)}"
    return _form_of_mapping(written, known)


def _form_of_call(written: str, word: str, known: Sequence[str]) -> tuple[str, str] | None:
    """Return the description and loptune's form of a call such as ``tune.uniform(0, 1)``; None if
    no known tool has such a function. ``word`` is the name of the function.
    """
    if word in known:
        return _other(f"{word}(...)", f"{word}: [...]")
    if word not in _BY_WORD:
        return None
    ours = _BY_WORD[word]
    if re.search(r"\blog\s*=\s*True", written):
        ours = _ON_LOG_SCALE.get(ours, ours)
    return _other(f"{word}(...)", ours)


def _form_of_mapping(written: Mapping[Any, Any], known: Sequence[str]) -> tuple[str, str] | None:
    """Return the description and loptune's form of a mapping; None if it has no word of another
    tool.

    Args:
        written: the mapping.
        known: the keys of loptune's ranges.
    """
    nested = _nested_key(written, known)
    if nested:
        return f"{nested} is nested", f"write its full key with dots: PARENT.{nested}: {{...}}"
    for word in written:
        if word in _BY_WORD and word not in known:
            return _other(f"`{word}`", _BY_WORD[word])
    names = [word for word in written if word in (*_BOUNDS, *_KIND) and word not in known]
    if not names:
        return None
    ours = "uniform: [LOW, HIGH], loguniform: [LOW, HIGH] or int: [LOW, HIGH]"
    for name in _KIND:
        kind = str(written.get(name, ""))
        if kind in known or kind in _BY_WORD:
            ours = f"{kind}: [...]" if kind in known else _BY_WORD[kind]
            break
    return _other(f"`{names[0]}`", ours)


def _other(name: str, ours: str) -> tuple[str, str]:
    return f"{name} is the syntax of another tool", f"write {ours}; {_TABLE}"


def _nested_key(written: Mapping[Any, Any], known: Sequence[str]) -> str:
    """Return the dotted key of the first range nested below another key; empty if there is none.
    W&B nests ranges below ``parameters``.
    """
    ranges = {*known, *_BY_WORD, *_BOUNDS, *_KIND}
    for key, below in written.items():
        if key in ranges or not isinstance(below, Mapping):
            continue
        name = "" if key == "parameters" else str(key)
        if any(word in ranges for word in below):
            return name
        inner = _nested_key(below, known)
        if inner:
            return f"{name}.{inner}" if name else inner
    return ""


def _show(kind: str, value: Any) -> str:
    """Format a range in loptune's syntax, as JSON, which is valid YAML."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):  # a date
        text = str(value)
    return f"{{{kind}: {shortened(text, _LONGEST)}}}"
