"""``trainer options``, ``schema`` and ``metrics``: reference of configuration keys and metrics."""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel

from loptune.declared_metrics import METRIC_FAMILIES, METRICS, Metric
from loptune.errors import ConfigError
from loptune.section import field_descriptions
from loptune.terminal.commands import Command, Option
from loptune.yaml_document import nearest, section_of, submodel
from trainer.config.schema import TrainConfig
from trainer.rules.kinds import KINDS, RuleKind

_WIDTH = 100  # columns
# words for settings in other tools -> keys
_SYNONYMS = {
    "accumulation": ("optim.tokens_per_microbatch", "optim.update_batch_size"),
    "batch": (
        "optim.update_batch_size",
        "rollout.prompts_per_step",
        "rollout.group_size",
        "optim.tokens_per_microbatch",
    ),
    "beta": ("algorithm.kl_coef",),
    "budget": ("max_hours", "max_steps", "epochs"),
    "clip": ("algorithm.loss.clip_ratio_low", "algorithm.loss.clip_ratio_high"),
    "duration": ("max_hours", "max_steps", "epochs"),
    "early stopping": ("max_steps", "evaluation.every_steps"),
    "epsilon": ("algorithm.loss.clip_ratio_low", "algorithm.loss.clip_ratio_high"),
    "eval": ("evaluation.every_steps", "evaluation.sets"),
    "generations": ("rollout.group_size",),
    "iterations": ("max_steps", "algorithm.update_epochs"),
    "learning rate": ("optim.lr",),
    "length": ("rollout.max_new_tokens", "data.max_prompt_tokens"),
    "logging": ("tracking.report_to",),
    "minibatch": ("optim.update_batch_size",),
    "num_generations": ("rollout.group_size",),
    "reference": ("algorithm.kl_coef",),
    "save": ("checkpoint.every_steps",),
    "time": ("max_hours", "max_steps"),
    "time limit": ("max_hours",),
    "timeout": ("max_hours",),
    "walltime": ("max_hours",),
    "tensorboard": ("tracking.report_to",),
    "wandb": ("tracking.report_to",),
}


@dataclass(frozen=True)
class ConfigOption:
    """One key of the configuration."""

    key: str
    allowed: str
    default: Any  # a JSON value
    description: str


def options(
    word: Annotated[list[str], Option("only show keys that contain this text")],
) -> list[ConfigOption]:
    """List configuration keys with their defaults, allowed values and descriptions. You can also
    search by the name that another tool uses for a key.

    Raises:
        ConfigError: no key matches.
    """
    return find_options(" ".join(word))


def metrics(
    metric: Annotated[list[str], Option("only show metrics that contain this text")],
) -> list[Metric]:
    """List logged metrics with formula, unit, and reduction over ranks.

    Raises:
        ConfigError: no metric matches.
    """
    families = [replace(family, name=f"{family.name}*") for family in METRIC_FAMILIES.values()]
    known = {each.name: each for each in (*METRICS.values(), *families)}
    return [known[name] for name in _find(" ".join(metric), list(known), "trainer metrics")]


def schema() -> str:
    """Print the JSON Schema of run files for editor completion. Editors with a YAML language server
    also check values with it.
    """
    return run_schema()


def run_schema() -> str:
    """Return the JSON Schema of run files, for completion and validation in editors."""
    schema = TrainConfig.model_json_schema()
    variant = {"type": "object", "description": "partial configuration, selected with FILE:NAME"}
    schema["properties"] |= {
        "extends": {
            "type": "string",
            "description": "preset[:variant] or file that this file overrides",
        },
        "variants": {"type": "object", "additionalProperties": variant},
    }
    return json.dumps(schema, indent=1)


def find_options(word: str = "") -> list[ConfigOption]:
    """Return the options whose key contains ``word``, or whose name in another tool is ``word``; if
    there are none, the options whose description contains it.

    Raises:
        ConfigError: no match; suggests the nearest key.
    """
    options = list(_options())  # a parameter that several rules share is listed once per rule
    keys = [option.key for option in options]
    meant = _SYNONYMS.get(word.lower().replace("_", " "), _SYNONYMS.get(word.lower(), ()))
    names = [key for key in keys if word.lower() in key.lower() or key in meant]
    if not names:
        described = [option.key for option in options if word.lower() in option.description.lower()]
        names = described or _find(word, keys, "trainer options")
    return [option for option in options if option.key in names]


def _find(word: str, names: Sequence[str], command: str) -> list[str]:
    matches = [name for name in names if word.lower() in name.lower()]
    if not matches:
        raise ConfigError(
            f"no name contains {word}", command, nearest(word, names, command), code="no-such-name"
        )
    return matches


def values_of(key: str) -> list[str]:
    """Return the allowed values of an option that has a fixed set of them, such as the names of
    rules; empty for any other option.
    """
    choices: list[str] = []
    for option in _options():
        if option.key == key and "|" in option.allowed:
            for allowed in option.allowed.replace(" or ", " | ").split("|"):
                value = allowed.strip()
                if " " not in value and ":" not in value and value not in choices:
                    choices.append(value)
    return choices


def _show_options(found: list[ConfigOption]) -> None:
    for option in found:
        default = json.dumps(option.default)
        _print_entry(f"{option.key} = {default}  [{option.allowed}]", option.description)


def _show_metrics(found: list[Metric]) -> None:
    for metric in found:
        over_ranks = f"{metric.reduction} over ranks"
        _print_entry(f"{metric.name}  [{metric.unit}; {over_ranks}]", metric.formula)


def _print_entry(head: str, text: str) -> None:
    """Print a heading and its text, indented below it."""
    lines = textwrap.wrap(
        head, _WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    lines += textwrap.wrap(text, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    print("\n".join(lines))


def _options(model: type[BaseModel] = TrainConfig, prefix: str = "") -> Iterator[ConfigOption]:
    """Yield all options in declaration order. The keys of a dataset follow the key that contains
    the datasets.
    """
    defaults = model().model_dump(mode="json")
    descriptions = field_descriptions(model)
    properties = model.model_json_schema(mode="serialization")["properties"]
    for name, field in model.model_fields.items():
        key = prefix + name
        if key in KINDS:
            yield from _rule_options(KINDS[key], descriptions.get(name, ""))
            continue
        text = descriptions.get(name, "")
        if "needs" in properties[name]:
            text += f"; needs {prefix}{properties[name]['needs']}"
        section = section_of(field.annotation)
        if section is not None:
            if section is not field.annotation:
                yield ConfigOption(key, "section (keys below), or null", defaults[name], text)
            yield from _options(section, f"{key}.")
            continue
        yield ConfigOption(key, _allowed(properties[name]), defaults[name], text)
        below = submodel(model, (name,))  # element type of a list or mapping of datasets
        if below is not None:
            if "additionalProperties" in properties[name]:
                key += ".NAME"
            yield from _options(below, f"{key}.")


def _rule_options(kind: RuleKind, description: str) -> Iterator[ConfigOption]:
    """Yield a rule's key and the parameters of every built-in rule."""
    yield ConfigOption(
        kind.key, f"{' | '.join(kind.registry)} | module:Class", kind.default, description
    )
    for name, rule in kind.registry.items():
        properties = rule.model_json_schema()["properties"]
        descriptions = field_descriptions(rule)
        for parameter, field in rule.model_fields.items():
            if parameter != "name":
                text = f"{name}: {descriptions.get(parameter)}"
                yield ConfigOption(
                    f"{kind.key}.{parameter}", _allowed(properties[parameter]), field.default, text
                )


def _allowed(schema: Mapping[str, Any]) -> str:
    """Describe the allowed values of a field from its JSON schema."""
    if "anyOf" in schema:
        return " or ".join(_allowed(part) for part in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return " | ".join(str(value) for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("prefixItems") or [schema.get("items", {})]
        return f"list of {', '.join(_allowed(item) for item in items)}"
    if kind == "object":
        return f"name -> {_allowed(schema['additionalProperties'])}"
    if kind in ("integer", "number"):
        return " ".join([kind, *_bounds(schema)])
    return {"boolean": "true | false", "string": "text", "null": "null"}.get(str(kind), "dataset")


def _bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    if "minimum" in schema and "maximum" in schema:
        yield f"{schema['minimum']:g} to {schema['maximum']:g}"
        return
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    for bound, sign in signs.items():
        if bound in schema:
            yield f"{sign} {schema[bound]:g}"


COMMANDS = {
    "options": Command(
        function=options, show=_show_options, fields=None, example="trainer options learning rate"
    ),
    "metrics": Command(
        function=metrics, show=_show_metrics, fields=None, example="trainer metrics entropy"
    ),
    "schema": Command(function=schema, show=print, fields=None, example="trainer schema"),
}
