"""Configuration of rules: the two rule kinds (loss, advantage) and parsing of their settings.

A setting is a name such as ``cispo``, or a mapping with parameters, ``{name: cispo,
clip_ratio_high: 3.0}``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError

from loptune.section import refusal
from trainer.rules.advantages import ADVANTAGES
from trainer.rules.custom import load_rule
from trainer.rules.interface import Advantage, PolicyLoss, Rule
from trainer.rules.losses import LOSSES
from trainer.rules.names import ADVANTAGE_KEY, DEFAULT_ADVANTAGE, DEFAULT_LOSS, LOSS_KEY
from trainer.rules.papers import PAPER_ADVANTAGES, PAPER_LOSSES

Setting = dict[str, Any]  # name and parameters of a rule


@dataclass(frozen=True)
class RuleKind:
    """A configuration key whose value is a rule."""

    key: str  # algorithm.loss
    base: type[Rule]
    registry: Mapping[str, type[Rule]]
    default: str

    def rule_class(self, name: str) -> type[Rule]:
        """Return the class of a rule.

        Raises:
            ValueError: neither a built-in rule nor an importable ``module:Class`` or
                ``module:function``.
        """
        if ":" in name:
            return load_rule(name, self.base, str(Path.cwd()))
        if name not in self.registry:
            names = ", ".join(self.registry)
            message = f"unknown rule {name}; valid: {names}, module:Class or module:function"
            # literal_error makes `validate` suggest the nearest name
            raise PydanticCustomError("literal_error", message, {"expected": names})
        return self.registry[name]

    def read(self, setting: Any) -> Any:
        """Parse a setting and return the rule.

        Raises:
            ValueError: unknown rule or parameter, or neither a name nor a mapping.
            pydantic.ValidationError: invalid parameter value.
        """
        if isinstance(setting, Rule):
            return setting
        given = self.mapping(setting)
        rule = self.rule_class(str(given["name"]))
        for parameter in given:
            if parameter not in rule.model_fields:
                parameters = ", ".join(key for key in rule.model_fields if key != "name") or "none"
                owners = ", ".join(
                    name for name, other in self.registry.items() if parameter in other.model_fields
                )
                raise refusal(
                    "unknown-parameter",
                    f"{given['name']} has no parameter {parameter} (rules that have it: "
                    f"{owners or 'none'}); its parameters: {parameters}",
                )
        return rule(**given)

    def mapping(self, setting: Any) -> Setting:
        """Normalize a setting to a mapping with a name.

        Raises:
            ValueError: neither a name nor a mapping.
        """
        if isinstance(setting, str):
            return {"name": setting}
        if not isinstance(setting, Mapping):
            raise refusal(
                "not-a-rule", "write the name of a rule, or a mapping of name and parameters"
            )
        return {"name": self.default, **setting}

    def merge(self, below: Any, above: Any) -> Setting:
        """Merge setting ``above`` into setting ``below``. Parameters of ``below`` are kept only if
        the rule is the same.
        """
        lower = self.mapping(below or {})
        upper = self.mapping(above if isinstance(above, str) else {"name": lower["name"], **above})
        return {**lower, **upper} if upper["name"] == lower["name"] else upper

    def over(self, below: Any, above: Any) -> Setting:
        """Merge like `merge`, with all other parameters set to their defaults.

        Raises:
            ValueError: unknown rule.
        """
        merged = self.merge(below, above)
        return {**self.rule_class(merged["name"])().model_dump(mode="json"), **merged}

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        """Return the JSON schema of a setting, for editors. pydantic calls it for a field with this
        kind in its annotation.
        """
        names: list[dict[str, Any]] = [
            {"enum": list(self.registry)},
            {"type": "string", "pattern": ".+:.+"},
        ]
        rules = [rule.model_json_schema() for rule in self.registry.values()]
        return {"anyOf": [*names, *rules], "default": self.default}


LOSS = RuleKind(LOSS_KEY, PolicyLoss, {**LOSSES, **PAPER_LOSSES}, DEFAULT_LOSS)
ADVANTAGE = RuleKind(
    ADVANTAGE_KEY, Advantage, {**ADVANTAGES, **PAPER_ADVANTAGES}, DEFAULT_ADVANTAGE
)
KINDS = {kind.key: kind for kind in (LOSS, ADVANTAGE)}
