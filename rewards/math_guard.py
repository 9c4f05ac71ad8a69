"""Limits on the size and comparison time of formulas that a policy writes."""

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rewards.limits import cpu_time_limit

_MAX_CHARS = 1000
_MAX_NESTING = 12  # parsing time doubles with every level of brackets
_MAX_DIGITS = 5000.0
_MAX_POWER_OF_SUM = 30.5
_BRACKET = re.compile(r"[({\[]|([)}\]])")
# sympy evaluates binomials while it parses them
_LARGE_BINOMIAL = re.compile(r"binom.*\d{4}|\d{4}.*choose|choose.*\d{4}", re.DOTALL)
# 448 legitimate comparisons took 0.02 s on average, at most 0.28 s
_LIMIT_S = 0.75


def is_safe_to_parse(text: str) -> bool:
    """Return whether an answer is safe to parse: short, without deep nesting or large binomials."""
    depths = itertools.accumulate(-1 if bracket[1] else 1 for bracket in _BRACKET.finditer(text))
    return (
        len(text) <= _MAX_CHARS
        and max(depths, default=0) <= _MAX_NESTING
        and not _LARGE_BINOMIAL.search(text)
    )


def is_safe_to_evaluate(formula: Any) -> bool:
    """Return whether every part of a sympy formula stays below the size limits; nothing is
    evaluated.
    """
    return _digits(formula) <= _MAX_DIGITS


def _digits(formula: Any) -> float:
    """Return an upper bound on log10 of the absolute value of any part, and of the denominator of
    any number in it, for real values with every symbol set to 10. A sum of fractions may have a
    larger denominator: the product of theirs.
    """
    if getattr(formula, "is_Rational", False):
        return math.log10(max(abs(int(formula.p)), int(formula.q)))
    if getattr(formula, "is_Float", False):
        return abs(_log10_of_float(formula))
    parts = [_digits(part) for part in getattr(formula, "args", ())]
    largest = max(parts, default=1.0)
    if getattr(formula, "is_Pow", False):
        power = _value(_log10_of(formula.exp, parts[1]))
        return max(largest, _digits_of_power(formula, parts[0], power))
    if getattr(formula, "is_Mul", False):
        return sum(parts)
    if getattr(formula, "is_Add", False):
        return largest + math.log10(len(parts))
    grown = _FAST_GROWING.get(type(formula).__name__)
    if grown is None:
        return largest
    return max(largest, grown(list(map(_log10_of, formula.args, parts))))


def _log10_of(formula: Any, digits: float) -> float:
    """Return an upper bound on log10 of the absolute value of a formula with these `_digits`, which
    is negative for a small number: 0.0001 has 4 digits but the value 10^-4.
    """
    if getattr(formula, "is_Rational", False):
        return math.log10(abs(int(formula.p)) or 1) - math.log10(int(formula.q))
    if getattr(formula, "is_Float", False):
        return _log10_of_float(formula)
    return digits


def _log10_of_float(number: Any) -> float:
    """Return about log10 of a sympy Float; it may be too small or too large for a Python float."""
    _, mantissa, exponent, bits = number._mpf_
    return float((exponent + bits) * math.log10(2)) if mantissa else 0.0


def _digits_of_power(formula: Any, base: float, power: float) -> float:
    if formula.base.is_Add and power > _MAX_POWER_OF_SUM:
        return math.inf
    return max(base, 1.0) * power


def _digits_of_exponential(arguments: Sequence[float]) -> float:
    return math.log10(math.e) * _value(arguments[0])


def _digits_of_factorial(arguments: Sequence[float]) -> float:
    """Return log10 of n^n, which is larger than n!, and than a sum or product of n parts up to
    n.
    """
    largest = max(arguments)
    return largest * _value(largest)


def _digits_of_binomial(arguments: Sequence[float]) -> float:
    """Return log10 of the smaller of 2^n and n^k."""
    n, k = arguments
    return min(math.log10(2) * _value(n), n * _value(k))


# sympy function -> digits of its value, given log10 of its arguments
_FAST_GROWING: Mapping[str, Callable[[Sequence[float]], float]] = {
    **dict.fromkeys(("exp", "sinh", "cosh"), _digits_of_exponential),
    **dict.fromkeys(
        (
            *("factorial", "factorial2", "subfactorial", "gamma", "beta"),
            *("RisingFactorial", "FallingFactorial", "catalan", "bell", "fibonacci", "lucas"),
            *("bernoulli", "euler", "zeta", "Sum", "Product"),
        ),
        _digits_of_factorial,
    ),
    "binomial": _digits_of_binomial,
}


def _value(digits: float) -> float:
    return 10 ** min(digits, 300.0)


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Limit the CPU time of a block to 0.75 s.

    The limit does not depend on earlier blocks. If it shrank with each timeout, the same completion
    would get a different reward in a fresh worker, for example after a resume.

    Raises:
        TimeoutError: the block takes longer.
    """
    with cpu_time_limit(_LIMIT_S):
        yield
