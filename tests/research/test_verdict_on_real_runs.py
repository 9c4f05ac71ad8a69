import numpy as np
import pytest
from scipy import stats

from research import verdict_on_real_runs
from research.verdict_on_real_runs import (
    BOOTSTRAPS,
    TESTS,
    bca,
    better_mean,
    drawn,
    goal_row,
    hierarchical,
    holm,
    measured,
    paired,
    paired_holm,
    permutation,
    verdict,
    widened,
)
from tests.paths import ROOT


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_drawn_seeds_vary_as_those_of_a_population(seeds):
    generator = np.random.default_rng(0)
    table = generator.standard_normal((3000, 10))
    centered = table - table.mean(axis=1, keepdims=True)
    scores = widened(drawn(centered, 1, 10_000, generator)[:, :, :seeds])
    for first in (3, seeds):
        assert scores[:, :, :first].mean(axis=2).var() == pytest.approx(1 / first, rel=0.05)
    low, high = stats.binom.interval(0.9999, 10_000, 0.05)
    assert low <= paired(scores).sum() <= high


def test_a_claim_is_wrong_where_unseen_seeds_do_not_show_it(monkeypatch):
    noise = np.random.default_rng(0).standard_normal((200, 10))
    apart = np.arange(200.0)[:, None] + 0.01 * noise
    monkeypatch.setattr(verdict_on_real_runs, "studies", lambda: {"equal": noise, "apart": apart})
    measurement = measured(better_mean, 1, 5, 2000)
    # Half of the cases of each are claimed; of those of equal means half are wrong, of the others
    # none.
    assert measurement.claimed == measurement.total == pytest.approx(2000, rel=0.1)
    assert measurement.wrong == pytest.approx(500, rel=0.15)
    assert measurement.levels == pytest.approx([0.5, 0.5], abs=0.05)
    assert measurement.beside == [] and not measurement.holds


def test_claims_beside_a_better_finalist_are_false(monkeypatch):
    noise = np.random.default_rng(0).standard_normal((200, 10))
    monkeypatch.setattr(verdict_on_real_runs, "studies", lambda: {"a": noise, "b": noise})
    measurement = measured(better_mean, 2, 5, 1000)
    assert measurement.beside == pytest.approx([0.5, 0.5], abs=0.05)
    # a gain of 1.5 is 2.4 standard errors
    assert measurement.finds_one == pytest.approx([0.99, 0.99], abs=0.02)


def test_rivals_keep_their_level_on_normal_scores():
    scores = np.random.default_rng(1).standard_normal((400, 4, 8))
    for test in (paired_holm, permutation, bca, hierarchical, verdict):
        assert test(scores).any(axis=1).mean() <= 0.1
        assert test(scores + 3 * (np.arange(4) == 2)[:, None])[:, 1].mean() > 0.95
    p = np.array([[0.01, 0.024, 0.2], [0.02, 0.01, 0.04], [0.04, 0.04, 0.04]])
    assert holm(p).tolist() == [[True, True, False], [True, True, True], [False] * 3]


def test_the_goal_is_missed_where_a_rival_that_holds_claims_more(monkeypatch, capsys):
    noise = np.random.default_rng(0).standard_normal((60, 10))
    apart = 2 * np.arange(60.0)[:, None] + noise
    monkeypatch.setattr(verdict_on_real_runs, "studies", lambda: {"a": apart, "b": apart + 1})
    monkeypatch.setattr(verdict_on_real_runs, "LAYOUTS", [(2, 5)])
    silent = np.zeros((100, 2), bool)
    tests = {"verdict": lambda scores: silent, "t": paired_holm, "mean": better_mean}
    monkeypatch.setattr(verdict_on_real_runs, "verdict", tests["verdict"])
    monkeypatch.setattr(verdict_on_real_runs, "TESTS", tests)
    verdict_on_real_runs.print_goal(100)
    _, _, row, _, answer = capsys.readouterr().out.splitlines()
    assert row.startswith("| 2 x 5 | 0.0 / 0.0 | t +")
    assert "mean" not in row  # it does not hold its level
    assert answer == "A rival that holds finds more: 2 x 5 (t)"


@pytest.mark.filterwarnings("ignore:Precision loss occurred")
@pytest.mark.parametrize(("finalists", "seeds"), [(1, 3), (1, 5), (3, 5), (4, 8), (8, 5)])
def test_the_page_prints_the_table_of_the_goal(finalists, seeds):
    page = (ROOT / "docs/development/guarantees.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    [printed] = [row for row in rows if row[:1] == [f"{finalists} x {seeds}"]]
    quick = {name: test for name, test in TESTS.items() if name not in (*BOOTSTRAPS, "permutation")}
    row = goal_row(finalists, seeds, 400, quick)
    assert printed == [row.layout, row.verdict, "; ".join(row.rivals.values())]
