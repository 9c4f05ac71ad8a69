"""Kinds of words that reasoning is made of: those of arXiv:2505.12929, table 5, and a wider choice.

A phrase may have several words. ``...`` in it stands for anything within one sentence, and a phrase that begins
with ``'s`` follows a name: ``'s statement`` is found in "Ava's statement".
"""

import re
from collections.abc import Sequence
from functools import lru_cache

# Table 5, with the inflections it counts: the plural of nouns, the past tense and past participle of verbs.
PAPER: dict[str, tuple[str, ...]] = {
    "analysis": (
        *("analyze", "analyzed", "consider", "considered", "look at", "looked at"),
        *("check", "checked", "examine", "examined"),
    ),
    "statement": ("'s statement", "'s statements"),
    "causal indicator": ("since", "because", "due to", "given that"),
    "conclusion indicator": ("so", "thus", "hence", "as a result", "consequently", "therefore"),
    "assumption": ("assume", "assumed", "if ... then"),
    "assertion": ("must be", "definite"),
}
_MANY = {
    "analysis": """
        analyze analyzes analyzed analyzing analyse analyses analysed analysing analysis
        examine examines examined examining evaluate evaluates evaluated evaluating evaluation
        check checks checked checking verify verifies verified verifying verification
        consider considers considered considering""",
    "statement": """
        statement statements state states stated stating say says said saying claim claims claimed claiming
        tell tells told telling mention mentions mentioned mentioning remark remarks remarked remarking
        comment comments commented commenting""",
    "causal indicator": "because since cause causes caused causing due given",
    "conclusion indicator": """
        therefore thus hence so consequently accordingly conclude concludes concluded concluding
        conclusion conclusions imply implies implied implying follows""",
    "assumption": """
        assume assumes assumed assuming assumption assumptions suppose supposes supposed supposing
        hypothesis hypotheses hypothesize hypothesizes hypothesized hypothesizing hypothetical if""",
    "assertion": """
        must definitely certainly clearly obviously indeed necessarily surely
        assert asserts asserted asserting assertion assertions confirm confirms confirmed confirming""",
}
WIDE = {category: tuple(words.split()) for category, words in _MANY.items()}
WORD_LISTS = {"paper": PAPER, "wide": WIDE}


def count_phrases(text: str, phrases: Sequence[str]) -> int:
    """How often the phrases occur in the text, as whole words, in any case."""
    return sum(len(pattern.findall(text)) for pattern in _patterns(tuple(phrases)))


@lru_cache(maxsize=64)
def _patterns(phrases: tuple[str, ...]) -> list[re.Pattern[str]]:
    # Phrases with a gap are counted on their own: what stands in the gap may hold others.
    gapped = [phrase for phrase in phrases if "..." in phrase]
    whole = sorted(set(phrases) - set(gapped), key=len, reverse=True)
    groups = ([whole] if whole else []) + [[phrase] for phrase in gapped]
    return [re.compile("|".join(map(_pattern, group)), re.IGNORECASE) for group in groups]


def _pattern(phrase: str) -> str:
    pieces = [r"\s+".join(map(re.escape, piece.split())) for piece in phrase.split("...")]
    words = r"\b[^.!?\n]*?\b".join(pieces).replace("'", "['’]")
    before = r"(?<=\w)" if phrase.startswith("'") else r"(?<!\w)"
    return rf"{before}{words}(?!\w)"
