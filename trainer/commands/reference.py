"""``trainer options`` and ``trainer metrics``: what can be set and what is measured, from their declarations."""

import difflib
import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from trainer.config.schema import TrainConfig
from trainer.config.yaml_document import nearest, submodel
from trainer.errors import ConfigError
from trainer.metrics.declared import METRIC_FAMILIES, METRICS, Metric

WIDTH = 100  # columns


@dataclass(frozen=True)
class Option:
    """One key of the configuration."""

    key: str
    allowed: str
    default: Any  # a JSON value
    description: str


Row = TypeVar("Row", Option, Metric)


def find_options(word: str = "") -> list[Option]:
    """The keys with ``word`` anywhere in their name.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    options = list(_options())
    found = [option for option in options if word.lower() in option.key.lower()]
    if not found:
        raise ConfigError(f"no key has {word} in its name", "trainer options", _nearest_key(word, options))
    return found


def find_metrics(word: str = "") -> list[Metric]:
    """The metrics with ``word`` anywhere in their name; families end in a slash and ``*``.

    Raises:
        ConfigError: there is none; names the nearest.
    """
    families = [
        Metric(f"{metric.name}*", metric.formula, metric.unit, metric.reduction)
        for metric in METRIC_FAMILIES.values()
    ]
    metrics = [*METRICS.values(), *families]
    found = [metric for metric in metrics if word.lower() in metric.name]
    if not found:
        raise ConfigError(
            f"no metric has {word} in its name", "trainer metrics", nearest(word, [m.name for m in metrics])
        )
    return found


def print_options(word: str, as_json: bool) -> None:
    """Print the keys with ``word`` in their name.

    Raises:
        ConfigError: there is none.
    """
    _print(find_options(word), _option_lines, as_json)


def print_metrics(word: str, as_json: bool) -> None:
    """Print the metrics with ``word`` in their name.

    Raises:
        ConfigError: there is none.
    """
    _print(find_metrics(word), _metric_lines, as_json)


def _option_lines(options: Sequence[Option]) -> Iterator[str]:
    """Two lines or more for each key: name, default and allowed values; below them what it means."""
    for option in options:
        default = json.dumps(option.default)
        yield from _entry(f"{option.key} = {default}", f"[{option.allowed}]", option.description)


def _metric_lines(metrics: Sequence[Metric]) -> Iterator[str]:
    """Two lines or more for each metric: name and unit; below them the formula."""
    for metric in metrics:
        yield from _entry(metric.name, f"[{metric.unit}]", metric.formula)


def metrics_page() -> str:
    """All metrics as a Markdown page."""
    lines = [
        "# Metrics",
        "",
        "Written by `trainer metrics --markdown` from `trainer/metrics/declared.py`; edit that file instead.",
        "",
        "Every value is logged to `metrics.jsonl` in the run's folder and to MLflow under the same name. The",
        "last column says how the values of several ranks become one; a mean is taken over the completions or",
        "tokens of all ranks. A name that ends in `*` is a family: its last part comes from the data or the",
        "configuration.",
    ]
    section = ""
    for metric in sorted(find_metrics(), key=lambda metric: metric.name.partition("/")[0]):
        head = metric.name.partition("/")[0]
        if head != section:
            section = head
            lines += ["", f"## {section}", "", "| Name | Formula | Unit | Ranks |", "|---|---|---|---|"]
        formula = metric.formula.replace("|", "\\|").replace("*", "\\*")
        lines.append(f"| `{metric.name}` | {formula} | {metric.unit} | {metric.reduction} |")
    return "\n".join(lines) + "\n"


def _print(rows: Sequence[Row], lines: Callable[[Sequence[Row]], Iterator[str]], as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        print("\n".join(lines(rows)))


def _entry(head: str, tail: str, text: str) -> Iterator[str]:
    if len(head) + 2 + len(tail) <= WIDTH:
        yield f"{head}  {tail}"
    else:
        yield from textwrap.wrap(head, WIDTH, subsequent_indent="    ", break_long_words=False)
        yield from textwrap.wrap(tail, WIDTH, initial_indent="    ", subsequent_indent="    ")
    yield from textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ")


def _options(model: type[BaseModel] = TrainConfig, prefix: str = "") -> Iterator[Option]:
    """All keys in the order of the file; those of a dataset stand behind the key that holds datasets."""
    defaults = model().model_dump(mode="json")
    properties = model.model_json_schema()["properties"]
    for name, field in model.model_fields.items():
        key = prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _options(field.annotation, f"{key}.")
            continue
        yield Option(key, allowed(properties[name]), defaults[name], field.description or "")
        below = submodel(model, (name,))  # of a list or mapping of datasets
        if below is not None:
            named = "additionalProperties" in properties[name]
            yield from _options(below, f"{key}.NAME." if named else f"{key}.")


def allowed(schema: Mapping[str, Any]) -> str:
    """The values of a field in words, from its JSON schema."""
    if "anyOf" in schema:
        return " or ".join(allowed(part) for part in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return " | ".join(str(value) for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("prefixItems") or [schema.get("items", {})]
        return f"list of {', '.join(allowed(item) for item in items)}"
    if kind == "object":
        return f"name -> {allowed(schema['additionalProperties'])}"
    if kind in ("integer", "number"):
        return " ".join(["integer" if kind == "integer" else "number", *_bounds(schema)])
    return {"boolean": "true | false", "string": "text", "null": "null"}.get(str(kind), "dataset")


def _bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    if "minimum" in schema and "maximum" in schema:
        yield f"{schema['minimum']:g} to {schema['maximum']:g}"
        return
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    yield from (f"{sign} {schema[bound]:g}" for bound, sign in signs.items() if bound in schema)


def _nearest_key(word: str, options: Sequence[Option]) -> str:
    # A word may be close to the last part of a key alone: clip_hihg to algorithm.clip_ratio_high.
    by_part = {part: option.key for option in options for part in (option.key, option.key.rpartition(".")[2])}
    close = difflib.get_close_matches(word, by_part, n=1, cutoff=0.5)
    return f"did you mean {by_part[close[0]]}?" if close else "trainer options lists all keys"
