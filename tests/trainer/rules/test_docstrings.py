"""Every built-in rule says its equation and where it comes from."""

import re
import sys

import pytest

from trainer.rules.kinds import ADVANTAGE, LOSS

RULES = {**LOSS.registry, **ADVANTAGE.registry}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_names_its_source_and_its_equation(name):
    rule = RULES[name]
    text = f"{sys.modules[rule.__module__].__doc__} {rule.__doc__}"
    assert re.search(r"arXiv:\d{4}\.\d{5}", text) or (name == "ipo" and "prime-rl" in text)
    assert re.search(r"``[^`]*[-=+*/(][^`]*``", rule.__doc__)
