import pytest

from trainer.commands.word_lists import PAPER, WIDE, WORD_LISTS, count_phrases


@pytest.mark.parametrize(
    ("category", "text", "count"),
    [
        ("analysis", "Let us ANALYZE it: we analyzed, considered, looked  at and checked.", 5),
        ("analysis", "His analysis considers looking at checks; examiner.", 0),
        ("analysis", "look\nat", 1),
        ("statement", "Ava's statement and Ben’s statements; the statement; Ava's stated", 2),
        ("causal indicator", "Since it rains, because due to that, given that; due, given", 4),
        ("conclusion indicator", "So, also SO; soon so-so. As a result, as result. Hence therefore.", 7),
        ("assumption", "Assume A. If B is true then C, if D. Then E", 2),
        ("assumption", "if A then B if C then D", 2),
        ("assumption", "If we assume A, then B", 2),
        ("assertion", "It must be definite, must not be definitely; must  be", 3),
        ("assertion", "", 0),
    ],
)
def test_the_papers_phrases_are_whole_in_any_case_and_in_its_inflections_alone(category, text, count):
    assert count_phrases(text, PAPER[category]) == count


def test_the_wide_list_counts_more():
    assert count_phrases("We ANALYZE; his analysis. Analytic. She states it.", WIDE["analysis"]) == 2
    assert count_phrases("She states it, and Ava's statement holds.", WIDE["statement"]) == 2


@pytest.mark.parametrize("name", WORD_LISTS)
def test_the_six_categories_share_no_phrase(name):
    phrases = [phrase for listed in WORD_LISTS[name].values() for phrase in listed]
    assert list(WORD_LISTS[name]) == list(PAPER)
    assert len(PAPER) == 6
    assert len(phrases) == len(set(phrases))
