"""Whether two formulas have the same value, exactly: parsed by math-verify, compared by sympy.

math-verify takes numbers for equal that agree in 6 decimals, and reads single letters after a number as units. So
decimals are made exact here, constants are compared in 40 digits, and its reading of units is off.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*\^\\circ")
_DIGITS = 40
_TOLERANCE = 1e-25  # relative below 1, absolute above; far below any difference that a decimal could hide


def same_value(gold: str, final: str) -> bool:
    """Whether two formulas, equations or words in LaTeX are equal; what cannot be parsed equals itself alone."""
    return any(_equal(one, other) for one in _parse(gold) for other in _parse(final))


def last_formula(text: str) -> str | None:
    """The last formula or number of a text, None without one."""
    from math_verify import ExprExtractionConfig, parse

    found = parse(text, [_latex(), ExprExtractionConfig()], parsing_timeout=None)
    return str(found[-1]) if found else None


@lru_cache(maxsize=256)
def _parse(formula: str) -> Sequence[Any]:
    from math_verify import parse

    formula = _DEGREES.sub(r"{(\\frac{\\pi \\cdot \1}{180})}", formula)
    # Only as one formula: the library's plain-number search would read 1 out of any formula it cannot parse
    # and so call two different ones equal.
    found = parse(f"\\boxed{{{formula}}}", [_latex()], parsing_timeout=None) or []
    return [_exact(one) for one in found]


@lru_cache(maxsize=1)
def _latex() -> Any:
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig

    return LatexExtractionConfig(
        normalization_config=NormalizationConfig(
            basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all"
        )
    )


def _exact(formula: Any) -> Any:
    """Decimals as fractions."""
    from sympy import Basic, Float, Rational

    if not isinstance(formula, Basic) or not formula.has(Float):
        return formula
    return formula.xreplace({number: Rational(str(number)) for number in formula.atoms(Float)})


def _equal(expected: Any, given: Any) -> bool:
    from math_verify import verify

    try:
        constants = _same_constant(expected, given)
        if constants is not None:
            return constants
        return bool(verify(expected, given, timeout_seconds=None, raise_on_error=True))
    except MemoryError:
        raise
    except Exception:  # sympy raises almost anything on formulas that make no sense, and those are wrong
        return False


def _same_constant(expected: Any, given: Any) -> bool | None:
    """The comparison of two constants; None where one is not a finite constant."""
    from sympy import Expr, N

    if not all(isinstance(one, Expr) and one.is_number for one in (expected, given)):
        return None
    if expected == given:
        return True
    values = [complex(N(one, _DIGITS)) for one in (expected, given)]
    size = max(map(abs, values))
    if not size < float("inf"):
        return None
    # Of large numbers the difference itself is small or not: 10^30 is not 10^30 + 1.
    return bool(abs(N(expected - given, _DIGITS)) <= _TOLERANCE * min(1, abs(N(expected, _DIGITS))))
