"""Normalize the notation of numbers and answers before answers are compared."""

import re

_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_SPACES = {0x00A0: " ", 0x2009: " ", 0x202F: " ", 0x3000: " "}
_MINUS_SIGN = {0x2212: "-"}
_LATEX_GAP = r"(?:,\\!\s*|\\[,;:! ]|\{,\}|\\thinspace|~)"
_GROUPED_BY_GAPS = re.compile(rf"(?<![\d.,])[1-9]\d{{0,2}}(?:{_LATEX_GAP}\d{{3}})+(?![\d])")
_GROUPED_BY_SPACES = re.compile(r"(?<![\d.,])([1-9]\d{0,2})((?: \d{3})+)(?![\d ])")
_DECORATION = re.compile(
    r"^(?:(?:the\s+)?(?:final\s+)?(?:answer|result|solution)\s*(?:is|=|:)\s*:?\s*)", re.IGNORECASE
)
_TAG = re.compile(r"</?(?:answer|ans|solution|result)>", re.IGNORECASE)
_MARKDOWN = re.compile(r"^(\*\*|__|`)(.+)\1$", re.DOTALL)
# matches $12, but neither \$12 nor the formula $12$
_DOLLARS = re.compile(r"^(-?)\s*(?:\$|USD)\s*(?=[-\d.][^$]*$)")
_FOREIGN_CURRENCY = re.compile(
    r"^(-?)\s*(?:\\text\{)?(?:€|£|¥|EUR)\}?\s*(?=[-\d.])|(?<=\d)\s*(?:€|£|¥)$"
)
_CURRENCY = re.compile(r"^(-?)\s*(?:\\?\$|€|£|¥|USD|EUR)\s*(?=[-\d.])|(?<=\d)\s*(?:€|£|¥)$")


def plain_characters(text: str) -> str:
    """Return the text with full-width characters, minus signs and special spaces as ASCII."""
    return text.translate(_FULL_WIDTH).translate(_SPACES).translate(_MINUS_SIGN)


def without_grouping(text: str) -> str:
    r"""Return the text with ``1\,234``, ``1{,}234`` and ``1 234`` as ``1234``."""
    text = _GROUPED_BY_GAPS.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    return _GROUPED_BY_SPACES.sub(lambda match: match[0].replace(" ", ""), text)


def plain_answer(answer: str) -> str:
    """Return an accepted answer as `unwrapped_answer` does, but without a currency sign."""
    text = answer
    before = ""
    while text != before:
        before = text
        text = _CURRENCY.sub(r"\1", unwrapped_answer(text))
    return text


def unwrapped_answer(answer: str) -> str:
    r"""Return an answer without the text around it: a worked solution before ``####``, tags,
    "Answer:", Markdown, a final period. A dollar sign becomes ``\$``; other currency signs are
    removed.
    """
    text = plain_characters(answer).rpartition("####")[2]
    before = ""
    while text != before:
        before = text
        text = _TAG.sub("", text).strip()
        text = _DECORATION.sub("", text)
        text = _MARKDOWN.sub(r"\2", text)
        text = _DOLLARS.sub(r"\1\\$", text)
        text = _FOREIGN_CURRENCY.sub(r"\1", text)
        if re.search(r"[\w)}\]%*°]\.$", text):
            text = text.removesuffix(".")
    return text
