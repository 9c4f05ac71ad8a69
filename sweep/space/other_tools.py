"""Translate ranges of other tools (W&B sweeps, Optuna, Ray Tune, Hydra's sweepers) into ours, for
the hint in the error message.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from loptune.errors import ConfigError, shortened
from loptune.yaml_document import parse_value

# name in another tool -> our kind of range, for ranges written [low, high] or [low, high, step]
_RANGES = {
    "float": "uniform",
    "interval": "uniform",
    "q_uniform": "quniform",
    "suggest_float": "uniform",
    "suggest_uniform": "uniform",
    "suggest_discrete_uniform": "quniform",
    "discrete_uniform": "quniform",
    "log_uniform": "loguniform",
    "log_uniform_values": "loguniform",
    "logfloat": "loguniform",
    "log_float": "loguniform",
    "qloguniform": "loguniform",
    "reverse_log_uniform": "loguniform",
    "suggest_loguniform": "loguniform",
    "int_uniform": "int",
    "integer": "int",
    "qrandint": "int",
    "randint": "int",
    "range": "int",
    "suggest_int": "int",
    "log_int": "logint",
    "loginteger": "logint",
    "lograndint": "logint",
    "qlograndint": "logint",
    "q_log_uniform_values": "logint",
}
_EXCLUSIVE = ("randint", "lograndint", "range")  # the upper bound is excluded
_CHOICES = (
    "values",
    "choices",
    "options",
    "categorical",
    "categorical_w_probabilities",
    "suggest_categorical",
    "grid",
    "grid_search",
)
_OF_EXPONENTS = ("log_uniform", "q_log_uniform")  # min and max are natural logarithms (W&B)
_WITHOUT_A_FORM = (
    "normal",
    "q_normal",
    "log_normal",
    "q_log_normal",
    "lognormal",
    "randn",
    "qrandn",
    "beta",
    "q_beta",
    "inv_log_uniform",
    "inv_log_uniform_values",
    "sample_from",
)
# W&B and Optuna write a range as a mapping: the keys of its bounds, step and kind
_LOW = ("min", "low", "lower", "lower_bound")
_HIGH = ("max", "high", "upper", "upper_bound")
_STEP = ("q", "step", "quantization")
_NAME_OF_KIND = ("distribution", "type", "sampling")
_CALL = re.compile(r"(?:\w+\.)*(\w+)\((.*)\)", re.DOTALL)
_LONGEST = 200  # maximum number of characters of a suggested range


def our_form(written: Any, known: Sequence[str]) -> tuple[str, str] | None:
    """Return a description of another tool's range and the equivalent range in loptune's syntax, or
    None if the mapping is not such a range. ``known`` are the keys of loptune's ranges.
    """
    if isinstance(written, list):
        return "a bare list is not a range", f"write {_show('choice', written)}"
    if isinstance(written, str) and (call := _CALL.fullmatch(written.strip())):
        return _of_call(call[1], call[2], known)
    if not isinstance(written, Mapping):
        return "a bare value is not a range", f"write {_show('value', written)}"
    nested = _nested_key(written, known)
    if nested:
        return f"{nested} is nested", f"write its full key with dots: PARENT.{nested}: {{...}}"
    for word, value in written.items():
        if word in known:
            continue
        if word in _RANGES or word in _CHOICES or word in _WITHOUT_A_FORM:
            return f"`{word}` is the syntax of another tool", _hint_for(word, value)
    names = {*_LOW, *_HIGH, *_NAME_OF_KIND}
    if any(word in names and word not in known for word in written):
        return "this range uses the syntax of W&B or Optuna", _of_mapping(written)
    return None


def _nested_key(written: Mapping[Any, Any], known: Sequence[str]) -> str:
    """Return the dotted key of the first range nested below another key; empty if there is none.
    W&B nests ranges below ``parameters``.
    """
    ranges = {*known, *_RANGES, *_CHOICES, *_WITHOUT_A_FORM, *_LOW, *_HIGH, *_NAME_OF_KIND}
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


def _of_call(word: str, arguments: str, known: Sequence[str]) -> tuple[str, str] | None:
    """Translate a call such as ``tune.loguniform(1e-6, 1e-3)`` or Hydra's ``interval(0, 1)``."""
    what = f"{word}(...) is the syntax of another tool"
    if word == "tag":  # tag(log, interval(1, 100))
        inner = _CALL.fullmatch(arguments.partition(",")[2].strip())
        if inner is None:
            return None
        kind = "loguniform" if inner[1] == "interval" else "logint"
        return what, f"write {_show(kind, _numbers(_listed(inner[2])))}"
    values = _listed(arguments)
    numbers = _numbers(values)
    if word in known and word not in ("choice", "by", "when", "value"):
        return what, f"write {_show(word, numbers)}"
    if word in ("choice", *_CHOICES):
        if len(values) == 1 and isinstance(values[0], list):
            values = values[0]
        return what, f"write {_show('choice', values)}"
    if word not in _RANGES and word not in _WITHOUT_A_FORM:
        return None
    is_log = "log=true" in arguments.lower().replace(" ", "")
    if "suggest" in word and is_log:  # Optuna; the first argument is the name
        kind = "logint" if _RANGES[word] == "int" else "loguniform"
        return what, f"write {_show(kind, numbers[:2])}"
    return what, _hint_for(word, numbers)


def _listed(arguments: str) -> list[Any]:
    """Return the arguments of a call as YAML values; empty if they are not valid YAML."""
    try:
        values: list[Any] = parse_value(f"[{arguments}]", "")
    except ConfigError:
        return []
    return values


def _numbers(values: Sequence[Any]) -> list[float]:
    return [value for value in values if isinstance(value, int | float)]


def _hint_for(word: str, value: Any) -> str:
    if word in _WITHOUT_A_FORM:
        return "loptune has no such range: write uniform: [LOW, HIGH] or loguniform: [LOW, HIGH]"
    if word in _CHOICES:
        listed = value if isinstance(value, list) else ["..."]
        return f"write {_show('choice', listed)}"
    kind = _RANGES[word]
    if isinstance(value, Mapping):
        return _of_mapping({**value, "distribution": word})
    if not isinstance(value, list) or not 2 <= len(value) <= 3:
        step = ", STEP" if kind == "quniform" else ""
        return f"write {kind}: [LOW, HIGH{step}]"
    ends = list(value)
    if word in _EXCLUSIVE and isinstance(ends[1], int):
        ends[1] -= 1
    if kind in ("loguniform", "logint"):
        ends = ends[:2]
    if kind == "uniform" and len(ends) == 3:
        kind = "quniform"
    return f"write {_show(kind, ends)}"


def _of_mapping(written: Mapping[Any, Any]) -> str:
    """Translate a mapping that names its bounds (``min``/``max``, ``low``/``high``), as W&B and
    Optuna write ranges.
    """
    named = str(_first(written, _NAME_OF_KIND) or "").lower()
    if "values" in written or "choices" in written:
        return f"write {_show('choice', _first(written, ('values', 'choices')))}"
    if "value" in written:
        return f"write {_show('value', written['value'])}"
    if named in _WITHOUT_A_FORM:
        return _hint_for(named, None)
    low, high, step = (_first(written, names) for names in (_LOW, _HIGH, _STEP))
    is_log = bool(written.get("log")) or "log" in named
    is_integer = "int" in named or (
        not named and isinstance(low, int) and isinstance(high, int) and not isinstance(step, float)
    )
    kind = {
        (False, False): "uniform",
        (False, True): "int",
        (True, False): "loguniform",
        (True, True): "logint",
    }[is_log, is_integer]
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return f"write {kind}: [LOW, HIGH]"
    if named in _OF_EXPONENTS:
        low, high = (float(f"{math.exp(min(end, 700)):.3g}") for end in (low, high))
    ends = [low, high]
    if isinstance(step, int | float) and step != 1 and not is_log:
        ends.append(step)
        kind = "quniform" if kind == "uniform" else kind
    return f"write {_show(kind, ends)}"


def _first(written: Mapping[Any, Any], names: Sequence[str]) -> Any:
    return next((written[name] for name in names if name in written), None)


def _show(kind: str, value: Any) -> str:
    """Format a range in loptune's syntax, as JSON, which is valid YAML."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):  # a date
        text = str(value)
    return f"{{{kind}: {shortened(text, _LONGEST)}}}"
