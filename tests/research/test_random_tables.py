from collections import Counter

import pytest

from research.random_tables import count, made

pytestmark = pytest.mark.slow


def test_made_up_tables_are_judged_as_they_were_made_or_refused_for_a_true_reason(tmp_path):
    counts = count(15, 30, tmp_path, show=True)
    for of_kind in counts.values():
        assert set(of_kind) <= {"judged", "refused"}
    assert counts["plain"]["judged"] >= 12 and counts["hard"]["judged"] >= 15


def test_every_trait_is_among_the_tables():
    traits = Counter(trait for number in range(100) for trait in made(number, True).traits)
    wanted = {"stratum", "failures", "no --mode", "no --task", "evaluations", "thousands"}
    assert wanted <= set(traits)
    assert all(made(7, hard).rows == made(7, hard).rows for hard in (False, True))
